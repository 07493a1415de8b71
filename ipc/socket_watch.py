"""Waiting for sockets and a doorbell at once."""

import select
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from .doorbell import Doorbell

_BATCH = 64  # messages of one socket of ZeroMQ before the others have their turn
_HAS_EPOLL = hasattr(select, "epoll")
_EVENTS = int(zmq.EVENTS)
_IN = int(zmq.POLLIN)
_IN_OR_OUT = int(zmq.POLLIN | zmq.POLLOUT)
_READABLE = 1  # EPOLLIN and POLLIN
_get: Callable[[Any, int], Any] = Backend.get  # what ``zmq.Socket.getsockopt`` calls

Ready = tuple[Any, int]
"""Whose descriptor it is, and what it is to be told: see ``SocketWatch.wait``."""


class SocketWatch:
    """Waits until something may be there to read: on plain descriptors, or on ZeroMQ's sockets.

    Who is woken need ask nobody anything before it does what it was woken for. A socket of
    ZeroMQ tells only of what has changed since it was last used, so its state is looked at before
    every sleep, when nobody waits for it. That is asked of each socket, not of ``zmq.zmq_poll``,
    which gives the interpreter away.
    """

    def __init__(self, bell: Doorbell | None = None, *, epoll: bool = _HAS_EPOLL) -> None:
        self._bell = bell
        self._descriptors: Any = select.epoll() if epoll else select.poll()
        self._poll: Callable[[float], list[tuple[int, int]]] = self._descriptors.poll
        self._unit = 0.001 if epoll else 1  # of a millisecond, as poll counts
        # epoll hears a ring without being told that it was heard
        self._clears_bell = not epoll
        self._ready: dict[int, Ready] = {}  # what to return for a descriptor
        self._asked: dict[int, tuple[Ready, Callable[[], int]]] = {}
        if bell is not None:
            events = select.EPOLLIN | select.EPOLLET if epoll else _READABLE
            self._descriptors.register(bell.fd, events)

    def listen(self, fd: int, owner: Any) -> None:
        """Watch a descriptor that wakes for as long as there is something to read."""
        self._ready[fd] = (owner, fd)
        self._descriptors.register(fd, _READABLE)

    def change(self, fd: int, events: int) -> None:
        """Wake for these events of a descriptor from now on."""
        self._descriptors.modify(fd, events)

    def add(self, socket: "zmq.Socket[bytes]", owner: Any = None) -> None:
        """Watch a socket of ZeroMQ, after those that were added before."""
        fd = int(socket.FD)
        whose = socket if owner is None else owner
        self._ready[fd] = (whose, 1)
        self._asked[fd] = ((whose, _BATCH), partial(_get, socket, _EVENTS))
        self._descriptors.register(fd, _READABLE)

    def forget(self, fd: int) -> None:
        """Watch a descriptor no more; before it is closed."""
        del self._ready[fd]
        self._asked.pop(fd, None)
        self._descriptors.unregister(fd)

    def look(self, *, writable: bool = False) -> list[Ready]:
        """Return which of ZeroMQ's sockets can be read, or with ``writable`` written to."""
        wanted = _IN_OR_OUT if writable else _IN
        return [ready for ready, ask in self._asked.values() if ask() & wanted]

    def wait(self, milliseconds: int, *, writable: bool = False) -> list[Ready]:
        """Return what may be read; wait for that, for the time or for a doorbell.

        Each comes with a number for who reads it: the descriptor, where one is watched itself; for
        a socket of ZeroMQ how many messages to try to take before the others have their turn. What
        wakes a sleeper is one message as a rule, and finding out that there is no other takes as
        long as handling it: so it is one. With ``writable`` a socket of ZeroMQ that can be written
        to ends the sleep as well.
        """
        ready = self.look(writable=writable) if self._asked else []
        known = self._ready
        for fd, _ in self._poll(0 if ready else milliseconds * self._unit):
            if fd in known:
                ready.append(known[fd])
            elif self._clears_bell and self._bell is not None:
                self._bell.clear()  # what it rang for is looked for afterwards
        return ready
