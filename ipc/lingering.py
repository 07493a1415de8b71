"""Gains that may wait for later ones, so that several rounds leave together.

Telling of a round wakes a thread here, the broker and the client: where nobody reads tokens as they
come, that is all it does. A run's first gain and its end never wait.
"""

from collections.abc import Sequence

from .served_engine import DeltaLike

_MOST = 1024  # gains that wait
_NEVER = float("inf")


class Lingering:
    """What waits, of all runs; when one's time has come all leave. Times are in seconds.

    A run that ends takes along what waits of it alone: in a large batch some run ends all the time.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # how long gains of a run may wait
        self._begun: set[str] = set()
        self._waiting: list[DeltaLike] = []
        self._due = _NEVER
        self.is_used = False  # some run's gains may wait, or do

    def begin(self, run: str, seconds: float) -> None:
        """Gains of this run may wait so long. 0: they do not."""
        if seconds > 0:
            self._seconds[run] = seconds
            self.is_used = True

    def end(self, run: str) -> None:
        """Forget a run. What waits of it is told all the same."""
        self._seconds.pop(run, None)
        self._begun.discard(run)
        self.is_used = bool(self._seconds or self._waiting)

    def release(self) -> Sequence[DeltaLike]:
        """Return all that waits."""
        told, self._waiting, self._due = self._waiting, [], _NEVER
        self.is_used = bool(self._seconds)
        return told

    def sift(self, gained: Sequence[DeltaLike], now: float) -> Sequence[DeltaLike]:
        """Take what a round gained; return what is to be told now, each run's in order."""
        if not self.is_used:
            return gained
        at_once: list[DeltaLike] = []
        ended: set[str] = set()
        for delta in gained:
            seconds = self._seconds.get(delta.request_id)
            if seconds is None:
                at_once.append(delta)
            elif delta.request_id not in self._begun:
                self._begun.add(delta.request_id)
                at_once.append(delta)
            else:
                self._waiting.append(delta)
                self._due = min(self._due, now + seconds)
                if delta.finish_reason is not None:
                    ended.add(delta.request_id)
        if now >= self._due or len(self._waiting) >= _MOST:
            return [*self.release(), *at_once]
        return [*self._take(ended), *at_once] if ended else at_once

    def _take(self, runs: set[str]) -> list[DeltaLike]:
        """Return what waits of some runs; the others' goes on waiting."""
        taken = [delta for delta in self._waiting if delta.request_id in runs]
        self._waiting = [delta for delta in self._waiting if delta.request_id not in runs]
        return taken
