"""What drafts have brought and lost with so many rows: they rest once they have lost too much.

    balance:  START, SHARE of all rounds, and all that rounds with drafts have brought beyond plain
              ones that take as long; MOST_SAVED at most

Everything is counted in plain rounds of the same moment. What a policy believes of drafts may be
wrong, and what it takes to begin and to end with them is in no belief: here only what has happened
counts. Drafts rest when nothing is left, and until RESUME of it has grown again. So with so many
rows no run loses more than START, SHARE of its time, and what the last round lost that was begun.
Where rounds are short START is longer: what it takes to learn is soon earned there.
"""

START = 3.0  # plain rounds that drafts may lose before they have brought anything
START_SECONDS = 0.05  # likewise, where plain rounds are short
SHARE = 0.005  # of the time spent, likewise
MOST_SAVED = 32.0  # plain rounds: what drafts brought long ago does not pay for what they lose now
RESUME = 1.0  # plain rounds of balance: so many show whether drafts pay, that some do not
MOST_LOST = 2.0  # plain rounds a round: what takes longer was held up by something else


class Account:
    """The balance of rounds with so many rows."""

    __slots__ = ("_balance", "rests")

    def __init__(self, start: float = START) -> None:
        self._balance = start
        self.rests = False

    def wait(self, count: int = 1) -> None:
        """So many plain rounds have passed."""
        self._add(SHARE * count)

    def settle(self, brought: float, took: float) -> None:
        """A round with drafts, or the one after it, brought and took so many plain rounds."""
        self._add(SHARE * took + max(-MOST_LOST, brought - took))

    def _add(self, change: float) -> None:
        self._balance = min(max(MOST_SAVED, self._balance), self._balance + change)
        if self._balance <= 0:
            self.rests = True
        elif self._balance >= RESUME:
            self.rests = False
