"""The socket of a client or a worker, whichever kind its address and keys need."""

import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import zmq

from .addresses import allow_ipv6, configure, is_local
from .frames import receive_frames, send_frames
from .keys import KeyPair
from .limits import MAX_FRAMES
from .plain_dealer import PlainDealer
from .socket_watch import SocketWatch

_HAS_EPOLL = hasattr(select, "epoll")


class Dealer(Protocol):
    """What both kinds do. They connect by themselves, and belong to one thread."""

    def send(self, frames: list[bytes]) -> None:
        """Send one message without waiting. Raises zmq.Again if none is taken now."""

    def arrivals(self, hint: int) -> Iterable[list[bytes]]:
        """Yield messages that are there; ``hint`` is what the watch said."""

    def tend(self) -> None:
        """Do what is due because time has passed; to be called now and then."""

    def close(self, linger: int = 0) -> None:
        """Close it; what is unsent has ``linger`` milliseconds."""


class ZmqDealer:
    """A DEALER of libzmq, with a context of its own: for other machines, with keys."""

    def __init__(
        self, address: str, watch: SocketWatch, keys: tuple[KeyPair, bytes] | None
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket)
        if keys is not None:
            own, server = keys
            self._socket.curve_publickey, self._socket.curve_secretkey = own.public, own.secret
            self._socket.curve_serverkey = server
        allow_ipv6(self._socket, address)
        self._socket.connect(address)
        self._watch = watch
        watch.add(self._socket, self)

    def send(self, frames: list[bytes]) -> None:
        send_frames(self._socket, frames)

    def arrivals(self, hint: int) -> Iterable[list[bytes]]:
        for _ in range(hint):
            frames = receive_frames(self._socket, MAX_FRAMES)
            if frames is None:
                return
            yield frames

    def tend(self) -> None:
        """Do nothing: libzmq does."""

    def close(self, linger: int = 0) -> None:
        self._watch.forget(int(self._socket.FD))
        self._socket.close(linger=linger)
        self._context.term()


def open_dealer(
    address: str,
    watch: SocketWatch,
    keys: tuple[KeyPair, bytes] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Dealer:
    """Return a DEALER that connects to ``address``; ``keys`` are one's own and the server's.

    ``watch`` wakes its owner when there may be something to read.
    """
    if keys is None and _HAS_EPOLL and is_local(address):
        return PlainDealer(address, watch, clock)
    return ZmqDealer(address, watch, keys)
