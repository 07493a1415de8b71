"""A socket of the wire that nobody else watches: taken from message by message."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ipc.socket_watch import SocketWatch


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return what ``condition`` returns once that is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.001)
    return value


class Alone:
    """A Dealer or Router, whatever it has besides, with a watch of its own."""

    def __init__(self, make: Callable[[SocketWatch], Any]) -> None:
        self.watch = SocketWatch()
        self.socket = make(self.watch)
        self._arrived: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def look(self) -> None:
        """Do what its owner does when he is woken."""
        self.socket.tend()
        for owner, hint in self.watch.wait(0):
            assert owner is self.socket
            self._arrived.extend(owner.arrivals(hint))

    def receive(self) -> Any:
        """Return what came next, or None."""
        if not self._arrived:
            self.look()
        return self._arrived.popleft() if self._arrived else None
