"""One connection that speaks ZMTP without libzmq: what it has to write, and what was read."""

import logging
import select
import socket
from collections import deque

from .addresses import HIGH_WATER_MARK
from .zmtp import GREETING, BrokenPeerError, Reader, framed

logger = logging.getLogger("octavo.wire")

_READ = 1 << 18  # bytes at a time
_MOST_BYTES = 64 << 20  # unsent, unless it is one message


class Unsent:
    """Messages that wait to be written, in order; a connection that is lost leaves them."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more may be added."""
        return len(self.messages) >= HIGH_WATER_MARK or self._bytes > _MOST_BYTES

    def add(self, message: bytes) -> None:
        """Add one behind the others."""
        self.messages.append(message)
        self._bytes += len(message)

    def forget_first(self) -> None:
        """The first is written, or lost."""
        self._bytes -= len(self.messages.popleft())


class PlainConnection:
    """A stream socket, watched by ``watch`` for as long as it is open. It never waits.

    ``kind`` is what this end says that it is. ``unsent`` and ``messages`` may come from a
    connection before it.
    """

    def __init__(
        self,
        made: socket.socket,
        kind: bytes,
        watch: "select.epoll",
        *,
        unsent: Unsent | None = None,
        messages: deque[list[bytes]] | None = None,
    ) -> None:
        self.is_open = True
        self.is_up = False  # both have said who they are
        self.is_broken = False  # it ended because the peer speaks something else
        self.unsent = Unsent() if unsent is None else unsent
        self._reader = Reader(kind, messages)
        self.messages = self._reader.messages  # that were read, to be taken
        self.fd = made.fileno()
        self._socket = made
        self._watch = watch
        self._control = GREETING  # what the protocol itself has to say, before the next message
        self._sent = 0  # bytes of the first unsent message
        self._waits_to_write = False
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch.register(made, select.EPOLLIN)

    def send(self, frames: list[bytes]) -> None:
        """Write a message, or keep it until that is possible."""
        self.unsent.add(framed(frames))
        if self.is_up:
            self.flush()

    def read(self) -> None:
        """Read what is there, up to a limit. Whatever is wrong ends the connection."""
        if not self.is_open:
            return
        try:
            data = self._socket.recv(_READ)
            if not data:
                raise ConnectionResetError
            self._reader.feed(data)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        except BrokenPeerError as error:
            logger.warning("a connection is given up: %s", error)
            self.is_broken = True
            self.close()
            return
        if self._reader.answers or not self.is_up:
            self._control += b"".join(self._reader.take_answers())
            self.is_up = self._reader.is_ready
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
            self._watch.modify(self.fd, select.EPOLLIN | (select.EPOLLOUT if full else 0))

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
        self._socket.close()  # which ends its being watched
        self.is_open = self.is_up = False
        if self._sent:
            self.unsent.forget_first()
            self._sent = 0
