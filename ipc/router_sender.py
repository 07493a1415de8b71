"""Sending on a ROUTER without ever waiting, and without ever losing a message silently."""

import errno
from collections import deque
from enum import Enum, auto

import zmq

from .router import Router

_MAX_BACKLOG = 10_000  # messages to one peer that does not read


class Sent(Enum):
    """What became of a message."""

    YES = auto()
    LATER = auto()  # the peer's queue is full; retry_backlogs() sends it
    GONE = auto()  # the peer is not connected any more


_YES = Sent.YES  # looking up an enum's member is Python code, and this is on every token's way


class RouterSender:
    """Owns the sending side of one ROUTER. Messages to a peer stay in order."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._backlogs: dict[bytes, deque[list[bytes]]] = {}

    @property
    def has_backlog(self) -> bool:
        """Whether some peer does not read as fast as it is written to."""
        return bool(self._backlogs)

    def send(self, peer: bytes, frames: list[bytes]) -> Sent:
        """Send, or keep for later. A peer with too long a backlog counts as gone."""
        if self._backlogs and peer in self._backlogs:
            return self._keep(peer, frames)
        try:
            self._router.send(peer, frames)
        except zmq.ZMQError as error:
            sent = _why(error)
            if sent is Sent.LATER:
                self._backlogs[peer] = deque([frames])
            return sent
        return _YES

    def _keep(self, peer: bytes, frames: list[bytes]) -> Sent:
        backlog = self._backlogs[peer]
        if len(backlog) >= _MAX_BACKLOG:
            del self._backlogs[peer]
            return Sent.GONE
        backlog.append(frames)
        return Sent.LATER

    def retry_backlogs(self) -> list[bytes]:
        """Send what was kept, as far as it goes now; return the peers that are gone."""
        gone = []
        for peer, backlog in list(self._backlogs.items()):
            sent = Sent.YES
            while backlog and sent is Sent.YES:
                sent = self._try(peer, backlog[0])
                if sent is Sent.YES:
                    backlog.popleft()
            if sent is Sent.GONE:
                gone.append(peer)
            if sent is not Sent.LATER:
                del self._backlogs[peer]
        return gone

    def _try(self, peer: bytes, frames: list[bytes]) -> Sent:
        try:
            self._router.send(peer, frames)
        except zmq.ZMQError as error:
            return _why(error)
        return _YES


def _why(error: zmq.ZMQError) -> Sent:
    """Return what a refusal to send means."""
    if isinstance(error, zmq.Again):
        return Sent.LATER
    if error.errno == errno.EHOSTUNREACH:
        return Sent.GONE
    raise error
