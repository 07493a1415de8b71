"""The broker's sockets, whichever kind their addresses and keys need."""

import select
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from .addresses import allow_ipv6, configure, is_local
from .frames import receive_from, send_to
from .keys import KeyPair
from .limits import MAX_FRAMES
from .plain_router import PlainRouter
from .socket_watch import socket_state

_HAS_EPOLL = hasattr(select, "epoll")
Arrival = tuple[bytes, str, list[bytes]]
"""The peer that sent a message, the name that the ZAP handler gave its key, or "", its frames."""


class Router(Protocol):
    """What both kinds do; for one thread."""

    FD: int
    """For a SocketWatch."""

    def bind(self, address: str) -> str:
        """Listen at an address; return what it became. Raises zmq.ZMQError."""

    def state(self) -> int:
        """Return zmq.POLLIN if a message may be taken; see SocketWatch."""

    def receive(self) -> Arrival | None:
        """Return what has arrived next, or None if there is nothing now."""

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send to a peer. Raises zmq.Again if it does not read, ZMQError (EHOSTUNREACH) if gone."""

    def close(self, linger: int = 0) -> None:
        """Close it; what is unsent has ``linger`` milliseconds."""


class ZmqRouter:
    """A ROUTER of libzmq; with a pair of keys it is a CURVE server of ``domain``."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", keys: KeyPair | None, domain: bytes
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        self._socket.router_mandatory = 1
        if keys is not None:
            self._socket.curve_server = 1
            self._socket.curve_publickey = keys.public
            self._socket.curve_secretkey = keys.secret
            self._socket.zap_domain = domain
        self.FD = int(self._socket.FD)

    def bind(self, address: str) -> str:
        """Listen there."""
        allow_ipv6(self._socket, address)
        self._socket.bind(address)
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\x00").decode()

    def state(self) -> int:
        """Ask libzmq."""
        return socket_state(self._socket)

    def receive(self) -> Arrival | None:
        """Receive one message."""
        received = receive_from(self._socket, MAX_FRAMES)
        if received is None:
            return None
        peer, first, frames = received
        return peer, _user_id(first), frames

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send one message."""
        send_to(self._socket, peer, frames)

    def close(self, linger: int = 0) -> None:
        """Close the socket."""
        self._socket.close(linger=linger)


def open_router(
    addresses: Sequence[str],
    context: "zmq.Context[zmq.Socket[bytes]]",
    keys: KeyPair | None = None,
    domain: bytes = b"",
    clock: Callable[[], float] = time.monotonic,
) -> Router:
    """Return a ROUTER that can be bound to ``addresses``."""
    if keys is None and _HAS_EPOLL and all(_can_be_plain(address) for address in addresses):
        return PlainRouter(clock)
    return ZmqRouter(context, keys, domain)


def _can_be_plain(address: str) -> bool:
    return is_local(address) and address != "ipc://*"


def _user_id(frame: zmq.Frame) -> str:
    """Return the name that the ZAP handler gave the connection of this frame, or ""."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
