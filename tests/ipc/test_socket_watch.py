"""Waiting for sockets and a bell: nothing that is there is slept over."""

import select
from collections.abc import Iterator

import pytest
import zmq

from ipc.doorbell import Doorbell
from ipc.frames import receive_from, send_frames, send_to
from ipc.socket_watch import SocketWatch

needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="Linux has epoll")
LONG = 60_000  # milliseconds: whoever sleeps so long has missed something

Sockets = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Sockets]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.linger = dealer.linger = 0
    router.router_mandatory = 1
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer.connect(f"tcp://127.0.0.1:{port}")
    yield router, dealer
    router.close()
    dealer.close()
    context.term()


def take(watch: SocketWatch, router: "zmq.Socket[bytes]", count: int) -> list[bytes]:
    """Take ``count`` messages as a service does, as many at a time as it is told to."""
    taken: list[bytes] = []
    while len(taken) < count:
        for socket, most in watch.wait(LONG):
            assert socket is router
            for _ in range(most):
                received = receive_from(router, 2)
                if received is None:
                    break
                peer, _, frames = received
                send_to(router, peer, frames)  # which may take the next one's announcement
                taken += frames
    return taken


def test_messages_that_come_together_are_all_taken(pair: Sockets) -> None:
    router, dealer = pair
    watch = SocketWatch()
    watch.add(router)
    for start in range(0, 300, 100):
        sent = [str(number).encode() for number in range(start, start + 100)]
        for each in sent:
            send_frames(dealer, [each])
        assert take(watch, router, 100) == sent
    assert watch.look() == []


def test_one_message_at_a_time_is_never_slept_over(pair: Sockets) -> None:
    router, dealer = pair
    watch = SocketWatch()
    watch.add(router)
    for number in range(200):
        send_frames(dealer, [str(number).encode()])
        assert take(watch, router, 1) == [str(number).encode()]
        assert dealer.recv() == str(number).encode()


@pytest.mark.parametrize("epoll", [False, pytest.param(True, marks=needs_epoll)])
def test_a_bell_ends_a_sleep_once(epoll: bool) -> None:
    bell = Doorbell()
    watch = SocketWatch(bell, epoll=epoll)  # no socket, whose connecting would end a sleep too
    bell.ring()
    assert watch.wait(LONG) == []
    bell.ring()  # between waking and sleeping: it is not lost
    assert watch.wait(LONG) == []
    assert watch._poll(0.001) == []  # nobody rang: the time ends it


def test_a_removed_socket_is_not_watched(pair: Sockets) -> None:
    router, dealer = pair
    bell = Doorbell()
    watch = SocketWatch(bell)
    watch.add(router)
    send_frames(dealer, [b"x"])
    assert watch.wait(LONG) != []
    watch.forget(int(router.FD))
    bell.ring()
    assert watch.wait(LONG) == []


def test_a_socket_is_ready_for_writing_when_asked(pair: Sockets) -> None:
    router, dealer = pair
    watch = SocketWatch()
    watch.add(dealer)
    assert watch.look() == []
    assert [socket for socket, _ in watch.wait(LONG, writable=True)] == [dealer]
    assert router is not dealer
