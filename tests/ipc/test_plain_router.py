"""The ROUTER without ZeroMQ's threads does what libzmq's would."""

import errno
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from alone import Alone, until

from ipc.plain_dealer import PlainDealer
from ipc.plain_router import HANDSHAKE, PlainRouter
from ipc.router import ZmqRouter, open_router
from ipc.socket_watch import SocketWatch
from ipc.zmtp import GREETING

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")


@pytest.fixture
def router() -> Iterator[Alone]:
    router = Alone(PlainRouter)
    yield router
    router.close()


def dealer_at(address: str) -> Alone:
    return Alone(lambda watch: PlainDealer(address, watch))


def exchange(router: Alone, dealer: Any, frames: list[bytes]) -> bytes:
    """Send there and back; return the peer."""
    dealer.send(frames)
    peer, name, arrived = until(lambda: (dealer.look(), router.receive())[1])
    assert (name, arrived) == ("", frames)
    router.send(peer, frames)
    assert until(lambda: (router.receive(), dealer.receive())[1]) == frames
    return bytes(peer)


def test_peers_of_several_addresses_are_told_apart(router: Alone, tmp_path: Path) -> None:
    addresses = [
        router.bind("tcp://127.0.0.1:*"),
        router.bind("tcp://[::1]:*"),
        router.bind(f"ipc://{tmp_path}/s"),
    ]
    dealers = [dealer_at(address) for address in addresses * 2]
    peers = [exchange(router, each, [b"%d" % n, b""]) for n, each in enumerate(dealers)]
    assert len(set(peers)) == 6
    for number, peer in enumerate(peers):
        router.send(peer, [b"to %d" % number])
    for number, dealer in enumerate(dealers):
        assert until(lambda dealer=dealer: dealer.receive()) == [b"to %d" % number]
        dealer.close()


def test_a_peer_that_left_cannot_be_reached(router: Alone) -> None:
    dealer = dealer_at(router.bind("tcp://127.0.0.1:*"))
    peer = exchange(router, dealer, [b"hello"])
    dealer.send([b"last words"])
    dealer.close(linger=1000)
    assert until(router.receive) == (peer, "", [b"last words"])
    assert router.receive() is None
    with pytest.raises(zmq.ZMQError) as raised:
        router.send(peer, [b"x"])
    assert raised.value.errno == errno.EHOSTUNREACH


def test_its_descriptor_wakes_who_waits(router: Alone) -> None:
    dealer = dealer_at(router.bind("tcp://127.0.0.1:*"))
    exchange(router, dealer, [b"hello"])
    assert router.watch.wait(1) == []
    for _ in range(3):
        dealer.send([b"x"])
        ((owner, hint),) = router.watch.wait(60_000)
        assert owner is router.socket
        assert [frames for _, _, frames in owner.arrivals(hint)] == [[b"x"]]
    assert router.watch.wait(1) == []


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    router = Alone(PlainRouter)
    dealer = dealer_at(router.bind(f"ipc://{path}"))
    exchange(router, dealer, [b"hello"])
    dealer.close()
    router.close()
    assert not path.exists()


def test_an_address_in_use_is_refused(router: Alone) -> None:
    address = router.bind("tcp://127.0.0.1:*")
    other = Alone(PlainRouter)
    with pytest.raises(zmq.ZMQError, match="in use"):
        other.bind(address)
    other.close()


def test_where_no_more_connections_can_be_it_waits_for_some_to_end(
    router: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    router.socket._clock = lambda: now
    address = router.bind("tcp://127.0.0.1:*")
    listening = next(iter(router._listening.values()))

    class Full:
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

    plain = router._accept
    monkeypatch.setattr(router.socket, "_accept", lambda made: plain(Full()))  # type: ignore[arg-type]
    dealer = dealer_at(address)
    until(lambda: (router.receive(), router._accepts_again)[1])
    assert router.watch.wait(10) == []  # nobody is woken for nothing
    monkeypatch.setattr(router.socket, "_accept", plain)
    router.tend()
    assert router.watch.wait(10) == []
    now = 0.2
    router.tend()
    exchange(router, dealer, [b"hello"])
    assert listening.fileno() in router._listening
    dealer.close()


def test_closing_waits_a_moment_for_what_is_unsent(router: Alone) -> None:
    dealer = dealer_at(router.bind("tcp://127.0.0.1:*"))
    peer = exchange(router, dealer, [b"hello"])
    for _ in range(50):
        router.send(peer, [bytes(100_000)])
    got: list[int] = []

    def read() -> None:
        while len(got) < 50:
            frames = dealer.receive()
            if frames is not None:
                got.append(len(frames[0]))

    thread = threading.Thread(target=read)
    thread.start()
    router.close(linger=60_000)
    thread.join(60)
    assert got == [100_000] * 50
    dealer.close()


def test_keys_and_other_machines_are_for_libzmq() -> None:
    context: zmq.Context[Any] = zmq.Context()
    kinds = [
        type(open_router(addresses, context, SocketWatch()))
        for addresses in (["tcp://127.0.0.1:*", "ipc:///tmp/x"], ["ipc://*"], ["tcp://0.0.0.0:*"])
    ]
    assert kinds == [PlainRouter, ZmqRouter, ZmqRouter]
    context.destroy(linger=0)


def test_who_does_not_say_what_he_is_in_time_is_sent_away_and_nobody_else(router: Alone) -> None:
    now = 0.0
    router.socket._clock = lambda: now
    address = router.bind("tcp://127.0.0.1:*")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    friend = dealer_at(address)
    exchange(router, friend, [b"hello"])
    with socket.create_connection((host, int(port))) as silent:
        silent.settimeout(60)
        until(lambda: (router.look(), len(router._connections) == 2)[1])
        silent.sendall(GREETING)  # and then no word about what it is
        now = 0.9 * HANDSHAKE
        router.look()
        assert len(router._connections) == 2
        now = 1.1 * HANDSHAKE
        router.look()
        assert len(router._connections) == 1
        while silent.recv(100):
            pass
    exchange(router, friend, [b"hello again"])
    friend.close()
