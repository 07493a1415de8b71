"""Waiting for ZeroMQ sockets and a doorbell at once."""

import select
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import zmq
from zmq.backend import Socket as Backend

from .doorbell import Doorbell

_BATCH = 64  # messages of one socket before the others have their turn
_HAS_EPOLL = hasattr(select, "epoll")
_EVENTS = int(zmq.EVENTS)
_IN = int(zmq.POLLIN)
_get: Callable[[Any, int], Any] = Backend.get  # what ``zmq.Socket.getsockopt`` calls


def socket_state(socket: "zmq.Socket[bytes]") -> int:
    """Return zmq.POLLIN, zmq.POLLOUT or both, as far as they hold."""
    state: int = _get(socket, _EVENTS)
    return state


class Watched(Protocol):
    """A socket that says its state itself."""

    FD: int

    def state(self) -> int:
        """Return as ``socket_state``."""


class SocketWatch:
    """Waits until something may be there to read: sockets of ZeroMQ, and others that are Watched.

    It sleeps on plain descriptors, so that whoever is woken need not ask ZeroMQ anything before it
    does what it was woken for. A socket's descriptor tells only of what has changed since the
    socket was last used, so its state is looked at before every sleep, when nobody waits for it.
    That is asked of each socket, not of ``zmq.zmq_poll``, which gives the interpreter away.
    """

    def __init__(self, bell: Doorbell | None = None, *, epoll: bool = _HAS_EPOLL) -> None:
        self._bell = bell
        self._rang = False
        self._sleep: _Epoll | _Poll = _Epoll() if epoll else _Poll()
        self._known: list[tuple[Any, Callable[[], int]]] = []  # and what asks for its state
        self._sockets: dict[int, Any] = {}
        if bell is not None:
            self._sleep.add_bell(bell.fd)

    def add(self, socket: "zmq.Socket[bytes] | Watched") -> None:
        """Watch a socket, after those that were added before."""
        ask: Callable[[], int] = (
            partial(_get, socket, _EVENTS) if isinstance(socket, zmq.Socket) else socket.state
        )
        self._known.append((socket, ask))
        self._sockets[int(socket.FD)] = socket
        self._sleep.add(int(socket.FD))

    def remove(self, socket: "zmq.Socket[bytes] | Watched") -> None:
        """Watch it no more; before it is closed."""
        self._known = [(one, ask) for one, ask in self._known if one is not socket]
        del self._sockets[int(socket.FD)]
        self._sleep.remove(int(socket.FD))

    def look(self, *, writable: bool = False) -> list[tuple[Any, int]]:
        """Return the sockets that can be read, or with ``writable`` written to, without waiting.

        Beside each, how many messages to try to take from it before the others have their turn.
        """
        wanted = zmq.POLLIN | zmq.POLLOUT if writable else _IN
        return [(socket, _BATCH) for socket, ask in self._known if ask() & wanted]

    def wait(self, milliseconds: int, *, writable: bool = False) -> list[tuple[Any, int]]:
        """Do as ``look``; if there is nothing, wait for that, for the time or for a doorbell.

        What wakes a sleeper is one message as a rule, and finding out that there is no other takes
        as long as handling it: so it is to take one.
        """
        ready = self.look(writable=writable)
        if ready:
            return ready
        for fd, _ in self._sleep.poll(milliseconds):
            socket = self._sockets.get(fd)
            if socket is None:
                self._rang = True
            else:
                ready.append((socket, 1))
        return ready

    def hush(self) -> None:
        """Clear the bell if it woke the last sleep. Look for what it rang for afterwards, again."""
        if self._rang and self._bell is not None:
            self._rang = False
            if not self._sleep.hears_each_ring:
                self._bell.clear()


class _Poll:
    """Sleeps on descriptors by poll."""

    hears_each_ring = False

    def __init__(self) -> None:
        self._poll = select.poll()
        self.poll = self._poll.poll

    def add_bell(self, fd: int) -> None:
        self.add(fd)

    def add(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        self._poll.unregister(fd)


class _Epoll:
    """Sleeps on descriptors by epoll, which hears a ring without being told that it was heard."""

    hears_each_ring = True

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        return self._epoll.poll(milliseconds / 1000)

    def add_bell(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def add(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        self._epoll.unregister(fd)
