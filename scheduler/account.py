"""What drafts have brought and lost with so many rows: they rest once they have lost too much.

    balance:  START, SHARE of all rounds, and all that rounds with drafts have brought beyond plain
              ones that take as long; MOST_SAVED at most

Everything is counted in plain rounds of the same moment. What a policy believes of drafts may be
wrong, and what it takes to begin and to end with them is in no belief: here only what has happened
counts. Drafts rest when nothing is left, and until RESUME of it has grown again; the first
MOST_PARDONS times it is given, after pauses, for a machine that changes its speed makes drafts look
dear as well. So with so many rows no run loses more than START, what is given, SHARE of its time,
and what the last rounds lost that were begun. Where rounds are short START is longer: what it takes
to learn is soon earned there.
"""

START = 3.0  # plain rounds that drafts may lose before they have brought anything
START_SECONDS = 0.05  # likewise, where plain rounds are short
SHARE = 0.005  # of the time spent, likewise
MOST_SAVED = 32.0  # plain rounds: what drafts brought long ago does not pay for what they lose now
RESUME = 1.0  # plain rounds of balance: so many show whether drafts pay, that some do not
MOST_LOST = 2.0  # plain rounds a round: what takes longer was held up by something else
FIRST_PAUSE, LONGER = 32, 4  # plain rounds before RESUME is given; each time so many times as many
MOST_PARDONS = 2  # until drafts have brought something


class Account:
    """The balance of rounds with so many rows."""

    __slots__ = ("_balance", "_left", "_pardons", "rests")

    def __init__(self, start: float = START) -> None:
        self._balance = start
        self._pardons = 0
        self._left = 0  # plain rounds until the next pardon
        self.rests = False

    def wait(self, count: int = 1) -> None:
        """So many plain rounds have passed."""
        self._add(SHARE * count)
        if self.rests and self._left > 0:
            self._left -= count
            if self._left <= 0:
                self._add(RESUME - self._balance)

    def settle(self, brought: float, took: float) -> None:
        """A round with drafts, or the one after it, brought and took so many plain rounds."""
        self._add(SHARE * took + max(-MOST_LOST, brought - took))

    def _add(self, change: float) -> None:
        self._balance = min(max(MOST_SAVED, self._balance), self._balance + change)
        if self._balance <= 0 and not self.rests:
            self.rests = True
            self._left = FIRST_PAUSE * LONGER**self._pardons if self._pardons < MOST_PARDONS else 0
            self._pardons += 1
        elif self._balance >= RESUME:
            self.rests = False
            if self._balance >= START + RESUME:
                self._pardons = 0
