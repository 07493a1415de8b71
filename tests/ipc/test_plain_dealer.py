"""The DEALER without ZeroMQ's threads does what libzmq's would."""

import itertools
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from alone import Alone, until

from ipc.addresses import HIGH_WATER_MARK, AddressError, configure
from ipc.dealer import ZmqDealer, open_dealer
from ipc.keys import KeyPair
from ipc.limits import MAX_FRAME_BYTES
from ipc.plain_dealer import PlainDealer
from ipc.socket_watch import SocketWatch
from ipc.zmtp import GREETING, framed

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"


def dealer_at(address: str) -> Alone:
    return Alone(lambda watch: PlainDealer(address, watch))


class Peer:
    """A ROUTER of libzmq that can leave and come back to its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.context: zmq.Context[Any] = zmq.Context()
        self.come()

    def come(self) -> None:
        self.router = self.context.socket(zmq.ROUTER)
        configure(self.router)
        self.router.bind(self.address)
        self.address = self.router.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")

    def leave(self) -> None:
        self.router.close(linger=0)

    def take(self, dealer: Alone) -> list[bytes]:
        """Return the next message, its sender before it."""

        def there() -> bool:
            dealer.look()
            return bool(self.router.poll(1))

        until(there)
        message: list[bytes] = self.router.recv_multipart()
        return message

    def answer(self, dealer: Alone, message: list[bytes]) -> list[bytes]:
        self.router.send_multipart(message)
        return until(dealer.receive)


@pytest.fixture(params=["ipc", "tcp", "tcp6"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    address = {"ipc": f"ipc://{tmp_path}/s", "tcp": "tcp://127.0.0.1:*", "tcp6": "tcp://[::1]:*"}
    peer = Peer.__new__(Peer)
    peer.context = zmq.Context()
    peer.context.setsockopt(zmq.IPV6, request.param == "tcp6")
    peer.address = address[request.param]
    peer.come()
    yield peer
    peer.context.destroy(linger=0)


@pytest.fixture
def dealer(peer: Peer) -> Iterator[Alone]:
    dealer = Alone(lambda watch: open_dealer(peer.address, watch))
    assert isinstance(dealer.socket, PlainDealer)
    yield dealer
    dealer.close()


def test_messages_go_both_ways_whole_and_in_order(peer: Peer, dealer: Alone) -> None:
    sent = [[b"a", b""], [b"", b"b" * 256, b"c"], [b"d" * MAX_FRAME_BYTES], [b"e"]]
    for frames in sent:
        dealer.send(frames)
    for frames in sent:
        message = peer.take(dealer)
        assert message[1:] == frames
        assert peer.answer(dealer, message) == frames
    assert dealer.receive() is None


def test_what_is_sent_before_anybody_is_there_arrives(tmp_path: Path) -> None:
    dealer = dealer_at(f"ipc://{tmp_path}/s")
    for number in range(3):
        dealer.send([str(number).encode()])
    peer = Peer(f"ipc://{tmp_path}/s")
    assert [peer.take(dealer)[1] for _ in range(3)] == [b"0", b"1", b"2"]
    dealer.close()
    peer.context.destroy(linger=0)


def test_it_comes_back_to_a_peer_that_was_away(peer: Peer, dealer: Alone) -> None:
    dealer.send([b"first"])
    peer.take(dealer)
    peer.leave()
    until(lambda: (dealer.receive(), dealer._connection is None)[1])
    dealer.send([b"second"])
    peer.come()
    message = peer.take(dealer)
    assert message[1] == b"second"
    assert peer.answer(dealer, message) == [b"second"]


def takes(dealer: Alone, frames: list[bytes]) -> bool:
    try:
        dealer.send(frames)
    except zmq.Again:
        return False
    return True


def test_a_peer_that_does_not_read_fills_it_up_to_a_limit(peer: Peer, dealer: Alone) -> None:
    sent = 0
    while takes(dealer, [b"%d" % sent, bytes(20_000)]):
        sent += 1
        dealer.look()
    assert sent >= HIGH_WATER_MARK
    numbers = [int(peer.take(dealer)[1]) for _ in range(sent)]
    assert numbers == list(range(sent))
    dealer.send([b"more"])
    assert peer.take(dealer)[1] == b"more"


def test_its_descriptor_wakes_who_waits(peer: Peer, dealer: Alone) -> None:
    dealer.send([b"hello"])
    message = peer.take(dealer)
    assert dealer.watch.wait(1) == []
    peer.router.send_multipart(message)
    peer.router.send_multipart(message)
    got: list[list[bytes]] = []
    while len(got) < 2:
        ((owner, hint),) = dealer.watch.wait(60_000)
        assert owner is dealer.socket
        got += owner.arrivals(hint)
    assert got == [[b"hello"]] * 2
    assert dealer.watch.wait(1) == []


def test_closing_waits_a_moment_for_what_is_unsent(peer: Peer, dealer: Alone) -> None:
    dealer.send([b"hello"])
    peer.take(dealer)
    for _ in range(50):
        dealer.send([bytes(100_000)])
    got: list[int] = []

    def read() -> None:
        while len(got) < 50:
            got.append(len(peer.router.recv_multipart()[1]))

    thread = threading.Thread(target=read)
    thread.start()
    dealer.close(linger=60_000)
    thread.join(60)
    assert got == [100_000] * 50


class Listener:
    """A peer whose bytes a test writes itself."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.address = f"ipc://{path}"

    def accept(self, dealer: Alone) -> socket.socket:
        dealer.look()
        self.listening.settimeout(60)
        until(lambda: (dealer.look(), dealer._connection is not None)[1])
        made, _ = self.listening.accept()
        made.settimeout(60)
        return made

    def greet(self, dealer: Alone) -> socket.socket:
        made = self.accept(dealer)
        made.sendall(GREETING + READY)
        until(lambda: (dealer.look(), dealer.is_up)[1])
        return made


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path / "l")
    yield listener
    listener.listening.close()


def read_all(made: socket.socket, dealer: Alone, ends: bytes) -> bytes:
    """Read until what has come ends like this."""
    data = b""
    while not data.endswith(ends):
        dealer.look()
        data += made.recv(1 << 16)
    return data


def test_a_message_cut_off_with_its_connection_is_not_sent_again_nor_its_rest(
    listener: Listener,
) -> None:
    dealer = dealer_at(listener.address)
    made = listener.greet(dealer)
    for letter in (b"x", b"y"):
        dealer.send([letter * 2_000_000])  # beyond what a socket takes at once
    made.recv(1000)
    made.close()
    until(lambda: (dealer.receive(), not dealer.is_up)[1])
    made = listener.greet(dealer)
    data = read_all(made, dealer, framed([b"y" * 2_000_000]))
    assert b"x" * 10 not in data
    dealer.close()


RUBBISH = {"http": b"HTTP/1.1 400 Bad Request\r\n" * 9, "flags": GREETING + b"\x40\x01x"}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
def test_a_peer_that_speaks_something_else_is_left_and_tried_again(
    listener: Listener, rubbish: bytes
) -> None:
    dealer = dealer_at(listener.address)
    dealer.send([b"kept"])
    made = listener.accept(dealer)
    made.sendall(rubbish)
    until(lambda: (dealer.look(), dealer._connection is None)[1])
    made.close()
    made = listener.greet(dealer)
    assert read_all(made, dealer, framed([b"kept"])).startswith(GREETING)
    dealer.close()


def test_attempts_to_connect_are_further_and_further_apart(tmp_path: Path) -> None:
    now = 0.0
    attempts: list[float] = []

    class Counted(PlainDealer):
        def _connect(self) -> None:
            attempts.append(now)
            super()._connect()

    dealer = Counted(f"ipc://{tmp_path}/nobody", SocketWatch(), lambda: now)
    while now < 4.0:
        now += 0.01
        dealer.tend()
    gaps = [round(after - before, 1) for before, after in itertools.pairwise(attempts)]
    assert gaps == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    dealer.close()


def test_keys_and_other_machines_are_for_libzmq() -> None:
    watch = SocketWatch()
    own, server = (KeyPair(*zmq.curve_keypair()) for _ in range(2))
    for dealer in (
        open_dealer("tcp://127.0.0.1:9", watch, (own, server.public)),
        open_dealer("tcp://192.0.2.1:9", watch),
    ):
        assert isinstance(dealer, ZmqDealer)
        dealer.close()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "ipc://" + "x" * 108])
def test_an_address_that_nothing_can_be_at_is_refused(address: str) -> None:
    with pytest.raises(AddressError):
        open_dealer(address, SocketWatch())
