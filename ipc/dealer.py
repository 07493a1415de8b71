"""The socket of a client or a worker, whichever kind its address and keys need."""

import select
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import zmq

from .addresses import allow_ipv6, configure, is_local
from .frames import receive_frames, send_frames
from .keys import KeyPair
from .limits import MAX_FRAMES
from .plain_dealer import PlainDealer
from .socket_watch import socket_state

_HAS_EPOLL = hasattr(select, "epoll")


class Dealer(Protocol):
    """What both kinds do. They connect by themselves, and belong to one thread."""

    FD: int
    """For a SocketWatch."""

    def state(self) -> int:
        """Return zmq.POLLIN if a message may be taken, zmq.POLLOUT if one may be sent, or both."""

    def send(self, frames: list[bytes]) -> None:
        """Send one message without waiting. Raises zmq.Again if none is taken now."""

    def receive(self) -> list[bytes] | None:
        """Return one message's frames, or None if there is none now."""

    def close(self, linger: int = 0) -> None:
        """Close it; what is unsent has ``linger`` milliseconds."""


class ZmqDealer:
    """A DEALER of libzmq, with a context of its own: for other machines, with keys."""

    def __init__(self, address: str, keys: tuple[KeyPair, bytes] | None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket)
        if keys is not None:
            own, server = keys
            self._socket.curve_publickey, self._socket.curve_secretkey = own.public, own.secret
            self._socket.curve_serverkey = server
        allow_ipv6(self._socket, address)
        self._socket.connect(address)
        self.FD = int(self._socket.FD)

    def state(self) -> int:
        return socket_state(self._socket)

    def send(self, frames: list[bytes]) -> None:
        send_frames(self._socket, frames)

    def receive(self) -> list[bytes] | None:
        return receive_frames(self._socket, MAX_FRAMES)

    def close(self, linger: int = 0) -> None:
        self._socket.close(linger=linger)
        self._context.term()


def open_dealer(
    address: str,
    keys: tuple[KeyPair, bytes] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Dealer:
    """Return a DEALER that connects to ``address``; ``keys`` are one's own and the server's."""
    if keys is None and _HAS_EPOLL and is_local(address):
        return PlainDealer(address, clock)
    return ZmqDealer(address, keys)


def arrived(dealer: Dealer, most: int) -> Iterator[list[bytes]]:
    """Yield the messages that are there, up to ``most``."""
    for _ in range(most):
        frames = dealer.receive()
        if frames is None:
            return
        yield frames
