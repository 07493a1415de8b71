"""The ROUTER without ZeroMQ's threads does what libzmq's would."""

import errno
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from ipc.doorbell import Doorbell
from ipc.plain_dealer import PlainDealer
from ipc.plain_router import PlainRouter
from ipc.router import ZmqRouter, open_router
from ipc.socket_watch import SocketWatch

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.001)
    return value


@pytest.fixture
def router() -> Iterator[PlainRouter]:
    router = PlainRouter()
    yield router
    router.close()


def exchange(router: PlainRouter, dealer: Any, frames: list[bytes]) -> bytes:
    """Send there and back; return the peer."""
    dealer.send(frames)
    peer, name, arrived = until(lambda: (dealer.state(), router.receive())[1])
    assert (name, arrived) == ("", frames)
    router.send(peer, frames)
    assert until(lambda: (router.receive(), dealer.state(), dealer.receive())[2]) == frames
    return bytes(peer)


def test_peers_of_several_addresses_are_told_apart(router: PlainRouter, tmp_path: Path) -> None:
    addresses = [
        router.bind("tcp://127.0.0.1:*"),
        router.bind("tcp://[::1]:*"),
        router.bind(f"ipc://{tmp_path}/s"),
    ]
    dealers = [PlainDealer(address) for address in addresses * 2]
    peers = [exchange(router, each, [b"%d" % n, b""]) for n, each in enumerate(dealers)]
    assert len(set(peers)) == 6
    for number, peer in enumerate(peers):
        router.send(peer, [b"to %d" % number])
    for number, dealer in enumerate(dealers):
        assert until(lambda dealer=dealer: dealer.receive()) == [b"to %d" % number]
        dealer.close()


def test_a_peer_that_left_cannot_be_reached(router: PlainRouter) -> None:
    dealer = PlainDealer(router.bind("tcp://127.0.0.1:*"))
    peer = exchange(router, dealer, [b"hello"])
    dealer.send([b"last words"])
    dealer.close(linger=1000)
    assert until(router.receive) == (peer, "", [b"last words"])
    assert router.receive() is None
    with pytest.raises(zmq.ZMQError) as raised:
        router.send(peer, [b"x"])
    assert raised.value.errno == errno.EHOSTUNREACH


def test_its_descriptor_wakes_who_waits(router: PlainRouter) -> None:
    dealer = PlainDealer(router.bind("tcp://127.0.0.1:*"))
    exchange(router, dealer, [b"hello"])
    bell = Doorbell()
    watch = SocketWatch(bell)
    watch.add(router)
    assert watch.wait(1) == []
    for _ in range(3):
        dealer.send([b"x"])
        assert watch.wait(60_000) == [(router, 1)]
        assert router.receive() is not None
    bell.ring()
    assert watch.wait(60_000) == []


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    router = PlainRouter()
    dealer = PlainDealer(router.bind(f"ipc://{path}"))
    exchange(router, dealer, [b"hello"])
    dealer.close()
    router.close()
    assert not path.exists()


def test_an_address_in_use_is_refused(router: PlainRouter) -> None:
    address = router.bind("tcp://127.0.0.1:*")
    other = PlainRouter()
    with pytest.raises(zmq.ZMQError, match="in use"):
        other.bind(address)
    other.close()


def test_where_no_more_connections_can_be_it_waits_for_some_to_end(
    router: PlainRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    router._clock = lambda: now
    address = router.bind("tcp://127.0.0.1:*")
    listening = next(iter(router._listening.values()))

    class Full:
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

    plain = router._accept
    monkeypatch.setattr(router, "_accept", lambda made: plain(Full()))  # type: ignore[arg-type]
    dealer = PlainDealer(address)
    until(lambda: (router.receive(), router._accepts_again)[1])
    assert router._watch.poll(0.01) == []  # nobody is woken for nothing
    monkeypatch.setattr(router, "_accept", plain)
    router.state()
    assert router._watch.poll(0.01) == []
    now = 0.2
    router.state()
    exchange(router, dealer, [b"hello"])
    assert listening.fileno() in router._listening
    dealer.close()


def test_closing_waits_a_moment_for_what_is_unsent(router: PlainRouter) -> None:
    dealer = PlainDealer(router.bind("tcp://127.0.0.1:*"))
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
        type(open_router(addresses, context))
        for addresses in (["tcp://127.0.0.1:*", "ipc:///tmp/x"], ["ipc://*"], ["tcp://0.0.0.0:*"])
    ]
    assert kinds == [PlainRouter, ZmqRouter, ZmqRouter]
    context.destroy(linger=0)
