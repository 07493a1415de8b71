"""Rounds that draft as deeply as the last one: where they are short it is thought over seldom.

    thought .. stays, stays, stays .. thought

It ends early when rows come or go, or an answer comes near its end. A trial is thought of anew each
round.
"""

LENGTH = 3  # rounds that stay after one that was thought over


class Stay:
    """How many rounds are still to stay, of how many rows, and at which depth."""

    __slots__ = ("depth", "expected", "is_crowded", "left", "num_rows")

    def __init__(self) -> None:
        self.left, self.depth, self.num_rows, self.is_crowded = 0, 0, 0, True
        self.expected: tuple[float, float] | None = None  # tokens, and drafts that are accepted

    def begin(
        self, depth: int, num_rows: int, *, is_crowded: bool, expected: tuple[float, float] | None
    ) -> None:
        """A round has been thought over: the next ones are to be like it."""
        self.left, self.depth, self.expected = LENGTH, depth, expected
        self.num_rows, self.is_crowded = num_rows, is_crowded

    def goes_on(self, num_rows: int, *, is_crowded: bool) -> bool:
        """Whether the next round stays; counts it."""
        if self.left <= 0 or num_rows != self.num_rows or is_crowded != self.is_crowded:
            self.left = 0
            return False
        self.left -= 1
        return True

    def end(self) -> None:
        """The next round is to be thought over."""
        self.left = 0
