"""Rounds in which drafts are not thought of: where none pay that is to cost next to nothing.

    thought .. rest ........................ thought .. rest
               passed, counted at once  timed

A rest ends early when rows come or go. It is the longer the more often it turned out that no drafts
could have paid; only its last rounds are timed, to be compared with drafts that may follow.
"""

LONGEST = 24  # rounds, where they are long
LONGEST_SECONDS, MOST = 0.1, 192  # where they are short: so long, and so many rounds at most
LONGEST_WITH_HOPES = 6  # where drafts in hand were not run, but nearly
TIMED = 4  # the last rounds of a rest


class Rest:
    """How many rounds are still to pass, of how many rows, and what has passed uncounted."""

    __slots__ = ("is_crowded", "left", "length", "num_rows", "rounds", "seconds")

    def __init__(self) -> None:
        self.left = 0
        self.length = 0  # of the last one
        self.num_rows, self.is_crowded = 0, True  # of the last round that was decided
        self.rounds, self.seconds = 0, 0.0

    def passes(self, num_rows: int, *, is_crowded: bool) -> bool:
        """Whether the next round rests, being like the last; counts it. False changes nothing."""
        if self.left <= 0 or num_rows != self.num_rows or is_crowded != self.is_crowded:
            return False
        self.left -= 1
        return True

    def goes_on(self, num_rows: int, *, is_crowded: bool, with_others: bool) -> bool:
        """Whether the next round rests; counts it. ``with_others``: whatever number of rows."""
        if self.passes(num_rows, is_crowded=is_crowded):
            return True
        self.num_rows, self.is_crowded = num_rows, is_crowded
        return with_others and self.passes(num_rows, is_crowded=is_crowded)

    def begin(self, rounds: int) -> None:
        """Let so many rounds pass, the next one first, which is decided."""
        self.left = rounds - 1

    def note(self, *, is_hopeless: bool, plain: float | None, at_least: int = 0) -> None:
        """It was thought of drafts: a longer rest comes if there is no hope, else none.

        ``plain`` are a round's seconds, if they are known. ``at_least``: nothing can change before.
        """
        most = longest(plain)
        self.length = min(2 * self.length + 1, most) if is_hopeless else 0
        self.left = max(self.length, min(at_least, most)) if is_hopeless else 0

    def note_hopes(self, before: int) -> None:
        """There may be better drafts soon than those not run; ``before`` was the length."""
        self.left = self.length = min(before + 1, LONGEST_WITH_HOPES)

    def keep(self) -> tuple[int, int, int, bool]:
        """What is decided so far, for ``take_back``."""
        return self.left, self.length, self.num_rows, self.is_crowded

    def take_back(self, kept: tuple[int, int, int, bool]) -> None:
        """Nothing was decided since."""
        self.left, self.length, self.num_rows, self.is_crowded = kept


def longest(plain: float | None) -> int:
    """How many rounds of ``plain`` seconds pass at most until drafts are thought of again."""
    return max(LONGEST, min(MOST, int(LONGEST_SECONDS / plain))) if plain else LONGEST
