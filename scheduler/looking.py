"""What it costs to look for drafts that may not be there, against rounds in which nobody looks.

A round that is sure to draft nothing can be launched before the one before it is read; whoever
looks for drafts in what was said has to wait. Where rounds run ahead that is a third of a round,
elsewhere nothing that could be told from noise. Times of about the same moment are compared only:
machines change their speed.
"""

from collections import deque
from statistics import median

SAMPLES = 9  # times kept of either kind
ENOUGH = 3  # of either kind, before they are compared
ROUNDS_TO_COMPARE = ENOUGH + 2  # of those that rest the first and the last are not timed by then
MOMENT = 32  # times within which those of either kind may be compared
NOTICED = 0.15  # of a round: less may be noise


class Looking:
    """Times of rounds without drafts, by whether somebody looked."""

    def __init__(self) -> None:
        self._times = {looked: deque[tuple[int, float]](maxlen=SAMPLES) for looked in (False, True)}
        self._number = 0  # of times
        self._last_looked = True
        self._is_compared = False
        self.price = 0.0
        """What looking adds to a round, in rounds; 0 where that is hardly noticed, or not known."""

    @property
    def should_rest(self) -> bool:
        """Whether a round in which nobody looks is due, for comparison."""
        return not self._is_compared and len(self._lately(looked=True)) >= ENOUGH

    def add(self, seconds: float, *, looked: bool) -> None:
        """A round without drafts has taken so long."""
        begins, self._last_looked = self._last_looked and not looked, looked
        if begins:  # part of its work was done in the round before
            return
        self._number += 1
        self._times[looked].append((self._number, seconds))
        if looked or not self.price:
            dear, cheap = self._lately(looked=True), self._lately(looked=False)
            if len(dear) >= ENOUGH and len(cheap) >= ENOUGH:
                self._is_compared = True
                price = median(dear) / median(cheap) - 1
                self.price = price if price >= NOTICED else 0.0

    def _lately(self, *, looked: bool) -> list[float]:
        return [seconds for at, seconds in self._times[looked] if at > self._number - MOMENT]
