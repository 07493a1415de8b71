"""Waiting for ZeroMQ sockets and a doorbell at once."""

import select
from typing import Any

import zmq

from .doorbell import Doorbell

_BATCH = 64  # messages of one socket before the others have their turn


class SocketWatch:
    """Waits until something may be there to read.

    It sleeps on plain descriptors, so that whoever is woken need not ask ZeroMQ anything before it
    does what it was woken for. A socket's descriptor tells only of what has changed since the
    socket was last used, so its state is looked at before every sleep, when nobody waits for it.
    """

    def __init__(self, bell: Doorbell | None = None) -> None:
        self._bell = bell
        self._rang = False
        self._poll = select.poll()
        self._states: list[tuple[zmq.Socket[bytes], int]] = []
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        if bell is not None:
            self._poll.register(bell.fd, select.POLLIN)

    def add(self, socket: "zmq.Socket[bytes]") -> None:
        """Watch a socket, after those that were added before."""
        self._states.append((socket, zmq.POLLIN))
        self._sockets[int(socket.FD)] = socket
        self._poll.register(socket.FD, select.POLLIN)

    def remove(self, socket: "zmq.Socket[bytes]") -> None:
        """Watch it no more; before it is closed."""
        self._states = [state for state in self._states if state[0] is not socket]
        del self._sockets[int(socket.FD)]
        self._poll.unregister(socket.FD)

    def look(self, *, writable: bool = False) -> list[tuple["zmq.Socket[bytes]", int]]:
        """Return the sockets that can be read, or with ``writable`` written to, without waiting.

        Beside each, how many messages to try to take from it before the others have their turn.
        """
        states = self._states
        if writable:
            states = [(socket, zmq.POLLIN | zmq.POLLOUT) for socket, _ in states]
        ready: list[tuple[Any, int]] = zmq.zmq_poll(states, 0)
        return [(socket, _BATCH) for socket, _ in ready]

    def wait(
        self, milliseconds: int, *, writable: bool = False
    ) -> list[tuple["zmq.Socket[bytes]", int]]:
        """Do as ``look``; if there is nothing, wait for that, for the time or for a doorbell.

        What wakes a sleeper is one message as a rule, and finding out that there is no other takes
        as long as handling it: so it is to take one.
        """
        ready = self.look(writable=writable)
        if ready:
            return ready
        for fd, _ in self._poll.poll(milliseconds):
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
            self._bell.clear()
