"""What drafts have brought and lost with so many rows: they rest once they have lost too much.

    balance:  START, SHARE of all rounds, and all that rounds with drafts have brought beyond plain
              ones that take as long; MOST_SAVED at most

Everything is counted in plain rounds of the same moment. What a policy believes of drafts may be
wrong, and what it takes to begin and to end with them is in no belief: here only what has happened
counts. Drafts rest when nothing is left, and until RESUME of it has grown again; once it is given,
after a PAUSE, for a machine that changes its speed makes drafts look dear as well. So with so many
rows no run loses more than START, what is given, SHARE of its time, and what the last rounds lost
that were begun. Where rounds are short START is longer, for what it takes to learn is soon earned
there, and with few rows, who have most to gain; what is left of that is withdrawn by and by, or a
run that has learnt all there is to learn would still lose it to late trials.
"""

from math import ceil

START = 3.0  # plain rounds that drafts may lose before they have brought anything
START_SECONDS, SHORT = 0.05, 0.005  # likewise, where a plain round is shorter than that
LEARNING = 256  # rounds, after which is withdrawn what START is longer where rounds are short
WITHDRAWN = 0.25  # plain rounds of that with each round
SHARE = 0.005  # of the time spent, likewise
MOST_SAVED = 32.0  # plain rounds: what drafts brought long ago does not pay for what they lose now
RESUME = 1.0  # plain rounds of balance: so many show whether drafts pay, that some do not
MOST_LOST = 2.0  # plain rounds a round, unless such a one lost as much before: else it was held up
PAUSE = 32  # plain rounds before RESUME is given, once until drafts have brought something


def start(plain: float, num_rows: int) -> float:
    """Plain rounds, each of ``plain`` seconds, that drafts may lose at first."""
    few = START_SECONDS / plain
    return few if plain < SHORT else max(START, few / num_rows)


class Account:
    """The balance of rounds with so many rows."""

    __slots__ = (
        "_balance",
        "_is_pardoned",
        "_learning",
        "_left",
        "_lent",
        "_lost",
        "rests",
    )

    def __init__(self, start: float = START) -> None:
        self._balance = start
        self._lent = start - START  # to be withdrawn, after so many rounds
        self._learning = LEARNING
        self._is_pardoned = False
        self._left = 0  # plain rounds until it is
        self._lost: dict[int, float] = {}  # by depth: the last round that lost more than MOST_LOST
        self.rests = False

    @property
    def rounds_left(self) -> int:
        """How many plain rounds drafts rest at least from now on."""
        if not self.rests:
            return 0
        grows = ceil((RESUME - self._balance) / SHARE)
        return min(self._left, grows) if self._left > 0 else max(1, grows)

    def wait(self, count: int = 1) -> None:
        """So many plain rounds have passed."""
        self._add(SHARE * count - self._withdrawn(count))
        if self.rests and self._left > 0:
            self._left -= count
            if self._left <= 0:
                self._add(RESUME - self._balance)

    def settle(self, depth: int, brought: float, took: float) -> None:
        """A round with drafts, or the one after it, brought and took so many plain rounds."""
        lost = took - brought
        if lost > MOST_LOST:
            before = self._lost.get(depth, MOST_LOST)
            self._lost[depth], lost = lost, min(lost, before)
        self._add(SHARE * took - lost - self._withdrawn(1))

    def _withdrawn(self, count: int) -> float:
        """Plain rounds that are withdrawn with so many rounds: none of what drafts have brought."""
        if self._lent <= 0:
            return 0.0
        self._learning -= count
        if self._learning > 0:
            return 0.0
        self._lent = min(self._lent, max(0.0, self._balance - START))
        withdrawn = min(self._lent, WITHDRAWN * count)
        self._lent -= withdrawn
        return withdrawn

    def _add(self, change: float) -> None:
        self._balance = min(max(MOST_SAVED, self._balance), self._balance + change)
        if self._balance <= 0 and not self.rests:
            self.rests = True
            self._left = 0 if self._is_pardoned else PAUSE
            self._is_pardoned = True
        elif self._balance >= RESUME:
            self.rests = False
            if self._balance >= START + RESUME:
                self._is_pardoned = False
