"""A ROUTER for this machine on sockets of its own, without ZeroMQ's threads; see plain_dealer.

To a peer it is what libzmq's is: messages whole and in order, a bounded queue for each peer.
"""

import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from .addresses import local_target
from .plain_connection import PlainConnection

_BACKLOG = 512  # connections that wait to be accepted
_PAUSE = 0.1  # seconds without accepting, when there can be no more connections
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class PlainRouter:
    """Listens at any number of addresses; for one thread. ``FD`` and ``state`` as PlainDealer's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watch = select.epoll()
        self.FD = self._watch.fileno()
        self._listening: dict[int, socket.socket] = {}
        self._paths: list[str] = []  # of sockets that are files
        self._peer_of: dict[int, bytes] = {}  # by descriptor
        self._connections: dict[bytes, PlainConnection] = {}  # by peer
        self._arrived: deque[tuple[bytes, str, list[bytes]]] = deque()
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
        self._watch.register(made, select.EPOLLIN)
        if family == socket.AF_UNIX:
            return address
        return f"{address.rpartition(':')[0]}:{made.getsockname()[1]}"

    def state(self) -> int:
        """Return zmq.POLLOUT, and zmq.POLLIN if a message was read that is not taken."""
        if self._accepts_again is not None and self._clock() >= self._accepts_again:
            self._accepts_again = None
            for made in self._listening.values():
                self._watch.register(made, select.EPOLLIN)
        return _IN | _OUT if self._arrived else _OUT

    def receive(self) -> tuple[bytes, str, list[bytes]] | None:
        """Return who sent a message, "" (nobody has a key), and its frames; None: there is none."""
        if not self._arrived:
            self._gather()
        return self._arrived.popleft() if self._arrived else None

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        """Send to a peer. Raises zmq.Again if it does not read, ZMQError (EHOSTUNREACH) if gone."""
        connection = self._connections.get(peer)
        if connection is None:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        if connection.unsent.is_full:
            raise zmq.Again
        connection.send(frames)
        if not connection.is_open:
            self._drop(peer, connection)

    def close(self, linger: int = 0) -> None:
        """Close it, after ``linger`` milliseconds at most in which what is unsent may leave."""
        for made in self._listening.values():
            made.close()
        until = self._clock() + linger / 1000
        while self._is_writing() and (left := until - self._clock()) > 0:
            self._watch.poll(min(left, _PAUSE))
            self._gather()
        for connection in self._connections.values():
            connection.close()
        self._watch.close()
        for path in self._paths:
            with suppress(OSError):
                os.unlink(path)

    def _is_writing(self) -> bool:
        return any(each.is_up and each.unsent.messages for each in self._connections.values())

    def _gather(self) -> None:
        """Read once from each connection that has something; write where that is waited for."""
        for fd, events in self._watch.poll(0):
            peer = self._peer_of.get(fd)
            if peer is None:
                if fd in self._listening:
                    self._accept(self._listening[fd])
                continue
            connection = self._connections[peer]
            if events & select.EPOLLOUT:
                connection.flush()
            connection.read()
            while connection.messages:
                self._arrived.append((peer, "", connection.messages.popleft()))
            if not connection.is_open:
                self._drop(peer, connection)

    def _accept(self, listening: socket.socket) -> None:
        try:
            made, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._accepts_again = self._clock() + _PAUSE
                for each in self._listening.values():
                    self._watch.unregister(each)
            return
        self._count += 1
        peer = b"\0" + (self._count & 0xFFFFFFFF).to_bytes(4, "big")
        connection = PlainConnection(made, b"ROUTER", self._watch)
        connection.flush()
        self._peer_of[connection.fd] = peer
        self._connections[peer] = connection

    def _drop(self, peer: bytes, connection: PlainConnection) -> None:
        del self._connections[peer]
        del self._peer_of[connection.fd]
