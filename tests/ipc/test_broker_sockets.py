"""The broker's edge to ZeroMQ: addresses, and sending without waiting or losing."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from alone import Alone
from wire_in_process import InProcess

from ipc import messages as m
from ipc.addresses import AddressError, is_local, require_local_or_curve
from ipc.client import Client
from ipc.codec import decode, encode
from ipc.fake_engine import fake_tokens
from ipc.frames import receive_frames
from ipc.plain_router import PlainRouter
from ipc.router import Router, ZmqRouter
from ipc.router_sender import RouterSender, Sent
from ipc.socket_watch import SocketWatch


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("ipc:///tmp/x", True),
        ("tcp://127.0.0.1:5", True),
        ("tcp://127.1.2.3:*", True),
        ("tcp://[::1]:5", True),
        ("tcp://localhost:5", True),
        ("tcp://*:5", False),
        ("tcp://0.0.0.0:5", False),
        ("tcp://[::]:5", False),
        ("tcp://10.0.0.1:5", False),
        ("tcp://eth0:5", False),
        ("tcp://localhost.example.org:5", False),
    ],
)
def test_an_address_is_local_only_if_no_other_machine_reaches_it(address: str, local: bool) -> None:
    assert is_local(address) == local
    if local:
        require_local_or_curve([address], curve=False)
    else:
        with pytest.raises(AddressError, match="octavo keys new"):
            require_local_or_curve([address], curve=False)
        require_local_or_curve([address], curve=True)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:5", "http://x:1", "tcp://127.0.0.1", "udp://x:1"]
)
def test_what_is_no_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(AddressError, match="must look like"):
        is_local(address)


class Pair:
    """A ROUTER and the DEALERs that it sends to, with short queues."""

    def __init__(self, make: Callable[["zmq.Context[Any]", SocketWatch], Router]) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = Alone(lambda watch: make(self.context, watch))
        self.address = self.router.bind("tcp://127.0.0.1:*")
        self.sender = RouterSender(self.router.socket)
        self.dealers: list[zmq.Socket[bytes]] = []

    def dealer(self) -> tuple["zmq.Socket[bytes]", bytes]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.rcvhwm = 5
        dealer.rcvbuf = 1 << 12
        dealer.connect(self.address)
        dealer.send(b"here")
        self.dealers.append(dealer)
        until = time.monotonic() + 60
        while (received := self.router.receive()) is None:
            assert time.monotonic() < until
        return dealer, received[0]

    def close(self) -> None:
        for socket in (*self.dealers, self.router):
            socket.close(linger=0)
        self.context.term()


def by_libzmq(context: "zmq.Context[zmq.Socket[bytes]]", watch: SocketWatch) -> Router:
    router = ZmqRouter(context, watch, None, b"")
    router._socket.sndhwm = 5
    router._socket.sndbuf = 1 << 12
    return router


def plain(context: "zmq.Context[zmq.Socket[bytes]]", watch: SocketWatch) -> Router:
    return PlainRouter(watch)


@pytest.fixture(params=[by_libzmq, plain])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr("ipc.plain_connection.HIGH_WATER_MARK", 5)
    pair = Pair(request.param)
    yield pair
    pair.close()


def test_a_message_to_a_peer_that_is_gone_is_no_silent_loss(pair: Pair) -> None:
    assert pair.sender.send(b"nobody", [b"x"]) is Sent.GONE
    dealer, peer = pair.dealer()
    assert pair.sender.send(peer, [b"x", b"y"]) is Sent.YES
    assert dealer.recv_multipart() == [b"x", b"y"]
    dealer.close(linger=0)
    until = time.monotonic() + 60
    while pair.sender.send(peer, [b"x"]) is not Sent.GONE:
        assert time.monotonic() < until
        assert pair.router.receive() is None
        time.sleep(0.01)


def test_a_peer_that_does_not_read_delays_nobody_and_loses_nothing(pair: Pair) -> None:
    sleeper, sleeping = pair.dealer()
    reader, reading = pair.dealer()
    payload = b"z" * 100_000  # a send that waited would wait for ever
    sent = [pair.sender.send(sleeping, [b"%d" % number, payload]) for number in range(200)]
    assert sent[0] is Sent.YES
    assert sent[-1] is Sent.LATER
    assert pair.sender.has_backlog
    assert pair.sender.send(reading, [b"hello"]) is Sent.YES
    assert reader.recv() == b"hello"

    numbers = []
    until = time.monotonic() + 60
    while len(numbers) < 200:
        assert time.monotonic() < until
        assert pair.sender.retry_backlogs() == []
        assert pair.router.receive() is None  # which writes what can be written
        if sleeper.poll(5):
            numbers.append(int(sleeper.recv_multipart()[0]))
    assert numbers == list(range(200))
    assert not pair.sender.has_backlog


def test_a_backlog_without_end_counts_as_gone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipc.router_sender._MAX_BACKLOG", 10)
    _, sleeping = pair.dealer()
    payload = b"z" * 100_000
    results = [pair.sender.send(sleeping, [payload]) for _ in range(300)]
    assert Sent.GONE in results
    late = results.index(Sent.LATER)
    assert results.index(Sent.GONE) == late + 10


@pytest.fixture
def running() -> Iterator[InProcess]:
    running = InProcess(stall_limit=1.0)
    yield running
    running.close()


@pytest.fixture
def deaf(running: InProcess) -> Iterator["zmq.Socket[bytes]"]:
    """A connection that nothing is read from unless the test does."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvhwm = 1
    socket.connect(running.address)
    yield socket
    socket.close(linger=0)
    context.term()


def test_a_client_that_reads_nothing_at_all_disturbs_nobody(
    running: InProcess, deaf: "zmq.Socket[bytes]"
) -> None:
    engine = running.worker(step=0.001, rows=4, tokens=4)
    deaf.send_multipart(encode(m.Hello(role="client", name="deaf")))
    for number in range(3):
        submit = m.Submit(
            *(f"d{number}", "text", "blah"), params={"max_tokens": 10**6, "seed": 1}, window=200
        )
        deaf.send_multipart(encode(submit))
    with Client(running.address) as client:
        for number in range(10):
            deaf.send_multipart(encode(m.Ping()))
            word = f"good {number}"
            answer = client.submit(word, {"max_tokens": 200, "seed": 1}, timeout=60).result()
            assert answer.token_ids == list(fake_tokens(word.encode(), 1, 0, 0, 200))
        until = time.monotonic() + 60
        while engine.samples:
            deaf.send_multipart(encode(m.Ping()))
            assert time.monotonic() < until
            time.sleep(0.05)
        said = []
        while deaf.poll(200):
            frames = receive_frames(deaf, 3)
            assert frames is not None
            said.append(decode(frames, m.TO_CLIENT))
        codes = [each.code for each in said if isinstance(each, m.Error)]
        assert codes == ["slow_reader"] * 3
        tokens = sum(len(each.ids) // 4 for each in said if isinstance(each, m.Chunk))
        assert tokens == 3 * 200


def test_another_version_is_told_so_at_once(running: InProcess, deaf: "zmq.Socket[bytes]") -> None:
    frames = encode(m.Hello(role="client", name="new"))
    deaf.send_multipart([frames[0].replace(b"\xa1v\x01", b"\xa1v\x02")])
    assert deaf.poll(5000)
    answer = decode(deaf.recv_multipart(), m.TO_CLIENT)
    assert isinstance(answer, m.Error)
    assert (answer.code, "only 1" in answer.message) == ("unsupported_version", True)
