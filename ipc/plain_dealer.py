"""A DEALER to this machine on a socket of its own, without ZeroMQ's threads.

A message through libzmq wakes two more threads at either end, which is most of what it takes. Who
owns this reads and writes the socket itself. It does what libzmq's does: it reconnects, keeps what
could not be sent, and sends a message whole or not at all.
"""

import errno
import socket
import time
from collections.abc import Callable, Sequence

from .addresses import local_target
from .plain_connection import PlainConnection, Unsent, write_rest
from .socket_watch import SocketWatch
from .zmtp import framed

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts to connect


class PlainDealer:
    """Connects at once, and again whenever the connection is lost; for one thread.

    ``watch`` wakes its owner when there may be something to read or to write. Something else must
    do so now and then, who then calls ``tend``: that connects.
    """

    def __init__(
        self, address: str, watch: SocketWatch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._family, self._target = local_target(address)
        self._watch = watch
        self._clock = clock
        self._unsent = Unsent()
        self._connection: PlainConnection | None = None
        self._pause = _FIRST_PAUSE
        self._due = 0.0  # when to connect next
        self.tend()

    @property
    def is_up(self) -> bool:
        """Whether there is a peer."""
        return self._connection is not None and self._connection.is_up

    def send(self, frames: list[bytes]) -> None:
        """Send one message, or keep it until that is possible. Raises zmq.Again if too many are."""
        connection = self._connection
        if connection is None:
            self._unsent.add(framed(frames))
        else:
            connection.send(frames)

    def arrivals(self, hint: int) -> Sequence[list[bytes]]:
        """Return the messages that are there, up to a limit. ``hint`` is of no use here."""
        connection = self._connection
        if connection is None:
            return ()
        messages = connection.read()
        if not connection.is_open:
            self._lose(connection)
        return messages

    def tend(self) -> None:
        """Do what is due because time has passed."""
        connection = self._connection
        if connection is not None and not connection.is_open:
            self._lose(connection)
        elif connection is not None and connection.is_up:
            self._pause = _FIRST_PAUSE
        elif connection is None and self._clock() >= self._due:
            self._connect()

    def close(self, linger: int = 0) -> None:
        """Close it, after ``linger`` milliseconds at most in which what is unsent may leave."""
        if self._connection is not None:
            write_rest((self._connection,), linger)
            self._connection.close()

    def _connect(self) -> None:
        made = socket.socket(self._family, socket.SOCK_STREAM)
        made.setblocking(False)
        if made.connect_ex(self._target) not in (0, errno.EINPROGRESS):
            made.close()
            self._wait()
            return
        connection = PlainConnection(made, b"DEALER", self._watch, self, unsent=self._unsent)
        self._connection = connection
        connection.flush()

    def _lose(self, connection: PlainConnection) -> None:
        self._connection = None
        if connection.is_broken:
            self._pause = _LONGEST_PAUSE
        self._wait()

    def _wait(self) -> None:
        """Connect again, but later."""
        self._due = self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
