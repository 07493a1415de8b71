"""What a round with drafts took over a plain one, on a machine that changes its speed."""

from dataclasses import dataclass
from statistics import fmean

SHIFTED = 1.25  # times so many times as long, before and after: the machine has changed its speed


@dataclass(slots=True, eq=False)
class Compared:
    """What a round with drafts took over a plain one of the same moment.

    It lies between plain rounds, or a plain one between such as itself: those on both sides have to
    agree. Until the other side has been seen the ratio is believed.
    """

    ratio: float
    at: int  # the number of the round that was timed first
    seconds: float
    plain: float  # seconds, of the side that has been seen
    awaits: int | None  # the depth of the other side; None once it has been seen

    def agrees(self, depth: int, seconds: float) -> bool:
        """See the other side; whether the machine is as fast there."""
        known = self.seconds if depth else self.plain
        self.awaits = None
        if not depth:
            self.ratio = self.seconds / fmean((self.plain, seconds))
        return max(known, seconds) <= SHIFTED * min(known, seconds)
