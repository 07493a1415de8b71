"""A ROUTER for this machine on sockets of its own, without ZeroMQ's threads; see plain_dealer.

To a peer it is what libzmq's is: messages whole and in order, a bounded queue for each peer.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from .addresses import local_target
from .plain_connection import PlainConnection, write_rest
from .socket_watch import SocketWatch

_BACKLOG = 512  # connections that wait to be accepted
_PAUSE = 0.1  # seconds without accepting, when there can be no more connections
HANDSHAKE = 3.0  # seconds


class PlainRouter:
    """Listens at any number of addresses; for one thread, which ``watch`` wakes.

    Now and then something else must wake it, and it then calls ``tend``. Who has not said what he
    is ``handshake`` seconds after he came is sent away.
    """

    def __init__(
        self,
        watch: SocketWatch,
        clock: Callable[[], float] = time.monotonic,
        *,
        handshake: float = HANDSHAKE,
    ) -> None:
        self._watch = watch
        self._clock = clock
        self._handshake = handshake
        self._listening: dict[int, socket.socket] = {}
        self._paths: list[str] = []  # of sockets that are files
        self._peer_of: dict[int, bytes] = {}  # by descriptor
        self._connections: dict[bytes, PlainConnection] = {}  # by peer
        self._strangers: dict[bytes, float] = {}  # who may not have said it yet, and the limit
        self._count = 0
        self._accepts_again: float | None = None

    def bind(self, address: str) -> str:
        """Listen at an address; return what it became. Raises zmq.ZMQError."""
        family, target = local_target(f"{address[:-1]}0" if address.endswith(":*") else address)
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_UNIX:
                if not target.startswith("\0"):
                    with suppress(FileNotFoundError):
                        os.unlink(target)
                    self._paths.append(target)
            else:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(target)
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            raise zmq.ZMQError(error.errno, f"{error.strerror}: {address}") from None
        made.setblocking(False)
        self._listening[made.fileno()] = made
        self._watch.listen(made.fileno(), self)
        if family == socket.AF_UNIX:
            return address
        return f"{address.rpartition(':')[0]}:{made.getsockname()[1]}"

    def tend(self) -> None:
        """Do what is due because time has passed."""
        now = self._clock()
        if self._accepts_again is not None and now >= self._accepts_again:
            self._accepts_again = None
            for fd in self._listening:
                self._watch.listen(fd, self)
        for peer, limit in list(self._strangers.items()):
            connection = self._connections.get(peer)
            if connection is None or connection.is_up:
                del self._strangers[peer]
            elif now >= limit:
                del self._strangers[peer]
                self._drop(peer, connection)

    def arrivals(self, hint: int) -> Sequence[tuple[bytes, str, list[bytes]]]:
        """Return what is there at the descriptor ``hint``, up to a limit: who sent each message,
        "" (nobody has a key), and its frames.
        """
        peer = self._peer_of.get(hint)
        if peer is None:
            if hint in self._listening:
                self._accept(self._listening[hint])
            return ()
        connection = self._connections[peer]
        messages = connection.read()
        if not connection.is_open:
            self._drop(peer, connection)
        if len(messages) == 1:
            return ((peer, "", messages[0]),)
        return [(peer, "", frames) for frames in messages]

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send to a peer. Raises zmq.Again if it does not read, ZMQError (EHOSTUNREACH) if gone."""
        connection = self._connections.get(peer)
        if connection is None:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        connection.send(frames)
        if not connection.is_open:
            self._drop(peer, connection)

    def close(self, linger: int = 0) -> None:
        """Close it, after ``linger`` milliseconds at most in which what is unsent may leave."""
        for fd, made in self._listening.items():
            if self._accepts_again is None:
                self._watch.forget(fd)
            made.close()
        self._listening.clear()
        write_rest(self._connections.values(), linger)
        for connection in self._connections.values():
            connection.close()
        for path in self._paths:
            with suppress(OSError):
                os.unlink(path)

    def _accept(self, listening: socket.socket) -> None:
        try:
            made, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._accepts_again = self._clock() + _PAUSE
                for fd in self._listening:
                    self._watch.forget(fd)
            return
        self._count += 1
        peer = b"\0" + (self._count & 0xFFFFFFFF).to_bytes(4, "big")
        connection = PlainConnection(made, b"ROUTER", self._watch, self)
        self._peer_of[connection.fd] = peer
        self._connections[peer] = connection
        self._strangers[peer] = self._clock() + self._handshake
        connection.flush()
        if not connection.is_open:
            self._drop(peer, connection)

    def _drop(self, peer: bytes, connection: PlainConnection) -> None:
        connection.close()
        del self._connections[peer]
        del self._peer_of[connection.fd]
