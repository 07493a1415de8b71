"""What it costs to look for drafts that may not be there, against rounds in which nobody looks.

A round that is sure to draft nothing can be launched before the one before it is read; whoever
looks for drafts in what was said has to wait. Where rounds run ahead that is a third of a round,
elsewhere nothing that could be told from noise.
"""

from collections import deque
from statistics import median

SAMPLES = 9  # times kept of either kind
ENOUGH = 3  # of either kind, before they are compared
NOTICED = 0.15  # of a round: less may be noise


class Looking:
    """Times of rounds without drafts, by whether somebody looked."""

    def __init__(self) -> None:
        self._times = {looked: deque[float](maxlen=SAMPLES) for looked in (False, True)}
        self._last_looked = True
        self.price = 0.0
        """What looking adds to a round, in rounds; 0 where that is hardly noticed, or not known."""

    @property
    def should_rest(self) -> bool:
        """Whether a round in which nobody looks is due, for comparison."""
        return len(self._times[True]) >= ENOUGH > len(self._times[False])

    def add(self, seconds: float, *, looked: bool) -> None:
        """A round without drafts has taken so long."""
        begins, self._last_looked = self._last_looked and not looked, looked
        if begins:  # part of its work was done in the round before
            return
        self._times[looked].append(seconds)
        if (looked or not self.price) and all(
            len(times) >= ENOUGH for times in self._times.values()
        ):
            price = median(self._times[True]) / median(self._times[False]) - 1
            self.price = price if price >= NOTICED else 0.0
