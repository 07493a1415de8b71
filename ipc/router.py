"""The broker's sockets, whichever kind their addresses and keys need."""

import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import zmq

from .addresses import allow_ipv6, configure, is_local
from .frames import receive_from, send_to
from .keys import KeyPair
from .limits import MAX_FRAMES
from .plain_router import HANDSHAKE, PlainRouter
from .socket_watch import SocketWatch

_HAS_EPOLL = hasattr(select, "epoll")
Arrival = tuple[bytes, str, list[bytes]]
"""The peer that sent a message, the name that the ZAP handler gave its key, or "", its frames."""


class Router(Protocol):
    """What both kinds do; for one thread."""

    def bind(self, address: str) -> str:
        """Listen at an address; return what it became. Raises zmq.ZMQError."""

    def arrivals(self, hint: int) -> Iterable[Arrival]:
        """Yield what has arrived; ``hint`` is what the watch said."""

    def tend(self) -> None:
        """Do what is due because time has passed; to be called now and then."""

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send to a peer. Raises zmq.Again if it does not read, ZMQError (EHOSTUNREACH) if gone."""

    def close(self, linger: int = 0) -> None:
        """Close it; what is unsent has ``linger`` milliseconds."""


class ZmqRouter:
    """A ROUTER of libzmq; with a pair of keys it is a CURVE server of ``domain``."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        watch: SocketWatch,
        keys: KeyPair | None,
        domain: bytes,
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        self._socket.router_mandatory = 1
        if keys is not None:
            self._socket.curve_server = 1
            self._socket.curve_publickey = keys.public
            self._socket.curve_secretkey = keys.secret
            self._socket.zap_domain = domain
        self._watch = watch
        watch.add(self._socket, self)

    def bind(self, address: str) -> str:
        """Listen there."""
        allow_ipv6(self._socket, address)
        self._socket.bind(address)
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\x00").decode()

    def arrivals(self, hint: int) -> Iterable[Arrival]:
        """Receive up to ``hint`` messages."""
        for _ in range(hint):
            received = receive_from(self._socket, MAX_FRAMES)
            if received is None:
                return
            peer, first, frames = received
            yield peer, _user_id(first), frames

    def tend(self) -> None:
        """Do nothing: libzmq does."""

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send one message."""
        send_to(self._socket, peer, frames)

    def close(self, linger: int = 0) -> None:
        """Close the socket."""
        self._watch.forget(int(self._socket.FD))
        self._socket.close(linger=linger)


def open_router(
    addresses: Sequence[str],
    context: "zmq.Context[zmq.Socket[bytes]]",
    watch: SocketWatch,
    keys: KeyPair | None = None,
    domain: bytes = b"",
    *,
    clock: Callable[[], float] = time.monotonic,
    handshake: float = HANDSHAKE,
) -> Router:
    """Return a ROUTER that can be bound to ``addresses``; see PlainRouter for the rest."""
    if keys is None and _HAS_EPOLL and all(_can_be_plain(address) for address in addresses):
        return PlainRouter(watch, clock, handshake=handshake)
    return ZmqRouter(context, watch, keys, domain)


def _can_be_plain(address: str) -> bool:
    return is_local(address) and address != "ipc://*"


def _user_id(frame: zmq.Frame) -> str:
    """Return the name that the ZAP handler gave the connection of this frame, or ""."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
