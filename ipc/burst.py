"""Requests that are made one after another leave together."""

import time
from collections.abc import Callable

_MOST = 64  # requests
_SECONDS = 0.005  # after which those that were made by then leave


class Burst:
    """Says when requests that are made one after another are to leave, several at a time.

    Alone, the first would be at the engine before the others, and have a round for its prompt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._began = 0.0

    def is_over(self) -> bool:
        """Count one more request; whether those so far should leave."""
        now = self._clock()
        if self._count == 0:
            self._began = now
        self._count += 1
        over = self._count >= _MOST or now - self._began >= _SECONDS
        if over:
            self._count = 0
        return over
