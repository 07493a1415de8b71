"""One connection that speaks ZMTP without libzmq: what it has to write, and what was read."""

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from .addresses import HIGH_WATER_MARK
from .socket_watch import SocketWatch
from .zmtp import GREETING, BrokenPeerError, Reader, framed

logger = logging.getLogger("octavo.wire")

_READ = 1 << 16  # bytes at a time
_MOST_BYTES = 64 << 20  # unsent, unless it is one message
_PAUSE = 100  # milliseconds


class Unsent:
    """Messages that wait to be written, in order; a connection that is lost leaves them."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self._bytes = 0

    def add(self, message: bytes) -> None:
        """Add one behind the others. Raises zmq.Again if too much waits."""
        if len(self.messages) >= HIGH_WATER_MARK or self._bytes > _MOST_BYTES:
            raise zmq.Again
        self.messages.append(message)
        self._bytes += len(message)

    def forget_first(self) -> None:
        """The first is written, or lost."""
        self._bytes -= len(self.messages.popleft())


class PlainConnection:
    """A stream socket, watched by ``watch`` for ``owner`` as long as it is open. It never waits.

    ``kind`` is what this end says that it is. ``unsent`` may come from a connection before it.
    """

    def __init__(
        self,
        made: socket.socket,
        kind: bytes,
        watch: SocketWatch,
        owner: Any,
        *,
        unsent: Unsent | None = None,
    ) -> None:
        self.is_open = True
        self.is_up = False  # both have said who they are
        self.is_broken = False  # it ended because the peer speaks something else
        self.unsent = Unsent() if unsent is None else unsent
        self._reader = Reader(kind)
        self.fd = made.fileno()
        self._socket = made
        self._watch = watch
        self._control = GREETING  # what the protocol itself has to say, before the next message
        self._sent = 0  # bytes of the first unsent message
        self._waits_to_write = False
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch.listen(self.fd, owner)

    def send(self, frames: list[bytes]) -> None:
        """Write a message, or keep it until that is possible. Raises zmq.Again if too much is."""
        message = framed(frames)
        if not self.is_up or self.unsent.messages or self._control:
            self.unsent.add(message)
            self.flush()
            return
        try:  # the usual case, with as few calls on a token's way as possible
            sent = self._socket.send(message)
        except OSError:
            sent = 0  # what is wrong, if anything is, shows again
        if sent != len(message):
            self.unsent.add(message)
            self._sent = sent
            self.flush()

    def read(self) -> Sequence[list[bytes]]:
        """Read what is there, up to a limit; return the messages of which that is the end.

        Whatever is wrong ends the connection.
        """
        if self._waits_to_write:
            self.flush()
        if not self.is_open:
            return ()
        reader = self._reader
        try:
            data = self._socket.recv(_READ)
            message = reader.alone(data)
            if message is not None:
                return (message,)
            if not data:
                raise ConnectionResetError
            reader.feed(data)
        except BlockingIOError:
            return ()
        except OSError:
            self.close()
        except BrokenPeerError as error:
            logger.warning("a connection is given up: %s", error)
            self.is_broken = True
            self.close()
        if reader.answers or not self.is_up:
            self._answer()
        messages = reader.messages
        reader.messages = []
        return messages

    def _answer(self) -> None:
        self._control += b"".join(self._reader.take_answers())
        self.is_up = self.is_open and self._reader.is_ready
        self.flush()

    def flush(self) -> None:
        """Write until the socket takes no more."""
        if not self.is_open:
            return
        full = False
        try:
            while True:
                if self._control and not self._sent:
                    self._control = self._control[self._socket.send(self._control) :]
                elif self.is_up and self.unsent.messages:
                    self._write_first()
                else:
                    break
        except BlockingIOError:
            full = True
        except OSError:
            self.close()
            return
        if full != self._waits_to_write:
            self._waits_to_write = full
            self._watch.change(self.fd, select.EPOLLIN | (select.EPOLLOUT if full else 0))

    def _write_first(self) -> None:
        first = self.unsent.messages[0]
        self._sent += self._socket.send(first[self._sent :] if self._sent else first)
        if self._sent == len(first):
            self.unsent.forget_first()
            self._sent = 0

    def close(self) -> None:
        """End it. A message of which a part was written is lost: nobody else gets the rest."""
        if not self.is_open:
            return
        self._watch.forget(self.fd)
        self._socket.close()
        self.is_open = self.is_up = False
        if self._sent:
            self.unsent.forget_first()
            self._sent = 0


def write_rest(connections: Iterable[PlainConnection], milliseconds: int) -> None:
    """Wait up to so long for peers to take what is unsent."""
    until = time.monotonic() + milliseconds / 1000
    while (left := until - time.monotonic()) > 0:
        poll = select.poll()
        writing = [each for each in connections if each.is_up and each.unsent.messages]
        if not writing:
            return
        for each in writing:
            poll.register(each.fd, select.POLLOUT)
        poll.poll(min(1000 * left, _PAUSE))
        for each in writing:
            each.flush()
