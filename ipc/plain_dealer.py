"""A DEALER to this machine on a socket of its own, without ZeroMQ's threads.

A message through libzmq wakes two more threads at either end, which is most of what it takes. Who
owns this reads and writes the socket itself. It does what libzmq's does: it reconnects, keeps what
could not be sent, and sends a message whole or not at all.
"""

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable

import zmq

from .addresses import local_target
from .plain_connection import PlainConnection, Unsent
from .zmtp import framed

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts to connect
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class PlainDealer:
    """Connects at once, and again whenever the connection is lost; for one thread.

    ``FD`` can be waited for: it is readable when there may be something to read or to write.
    Something else must wake its owner now and then, who then calls ``state``: that connects.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._family, self._target = local_target(address)
        self._clock = clock
        self._watch = select.epoll()
        self.FD = self._watch.fileno()
        self._unsent = Unsent()
        self._messages: deque[list[bytes]] = deque()
        self._connection: PlainConnection | None = None
        self._pause = _FIRST_PAUSE
        self._due = 0.0  # when to connect next
        self._advance()

    @property
    def is_up(self) -> bool:
        """Whether there is a peer."""
        return self._connection is not None and self._connection.is_up

    def state(self) -> int:
        """Return zmq.POLLIN if a message was read that is not taken, POLLOUT if one may be sent."""
        connection = self._connection
        if connection is None or not connection.is_up or self._unsent.messages:
            self._advance()
        bits = _IN if self._messages else 0
        return bits if self._unsent.is_full else bits | _OUT

    def send(self, frames: list[bytes]) -> None:
        """Send one message, or keep it until that is possible. Raises zmq.Again if too many are."""
        if self._unsent.is_full:
            raise zmq.Again
        if self._connection is None:
            self._unsent.add(framed(frames))
        else:
            self._connection.send(frames)

    def receive(self) -> list[bytes] | None:
        """Return one message's frames, or None if there is none now."""
        if not self._messages and self._connection is not None:
            self._read(self._connection)
        return self._messages.popleft() if self._messages else None

    def close(self, linger: int = 0) -> None:
        """Close it, after ``linger`` milliseconds at most in which what is unsent may leave."""
        until = self._clock() + linger / 1000
        while self._unsent.messages and self.is_up and (left := until - self._clock()) > 0:
            self._watch.poll(left)
            self._advance()
        if self._connection is not None:
            self._connection.close()
        self._watch.close()

    def _advance(self) -> None:
        """Do what can be done without waiting."""
        if self._connection is None:
            if self._clock() >= self._due:
                self._connect()
        else:
            self._read(self._connection)

    def _read(self, connection: PlainConnection) -> None:
        connection.flush()
        connection.read()
        if connection.is_up:
            self._pause = _FIRST_PAUSE
        elif not connection.is_open:
            if connection.is_broken:
                self._pause = _LONGEST_PAUSE
            self._wait()

    def _connect(self) -> None:
        made = socket.socket(self._family, socket.SOCK_STREAM)
        made.setblocking(False)
        if made.connect_ex(self._target) not in (0, errno.EINPROGRESS):
            made.close()
            self._wait()
            return
        self._connection = PlainConnection(
            made, b"DEALER", self._watch, unsent=self._unsent, messages=self._messages
        )
        self._read(self._connection)

    def _wait(self) -> None:
        """Connect again, but later."""
        self._connection = None
        self._due = self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
