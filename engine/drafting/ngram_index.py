"""Where in a sequence its last words were said before, kept up to date token by token."""

from collections.abc import Sequence

LONGEST = 4
SHORTEST = 2
MOST_COMPARED = 16  # words before a place that are looked at, to say how good it is


class NgramIndex:
    """The newest place after each n-gram of one sequence that another token follows.

    Each token costs LONGEST - SHORTEST + 1 entries, once.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # n-gram: position of the token after it
        self._length = 0  # tokens whose predecessors are indexed

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what ``tokens``, all tokens of the sequence, has beyond the last time's."""
        for position in range(self._length, len(tokens)):
            for size in range(SHORTEST, min(LONGEST, position) + 1):
                self._after[tuple(tokens[position - size : position])] = position
        self._length = max(self._length, len(tokens))

    def continuation(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """What followed the longest suffix of ``tokens`` that was said before; () if none was.

        At most ``most`` tokens. A repetition that reaches the end goes on with itself.
        """
        position = self._place(tokens)
        if position is None:
            return ()
        period = len(tokens) - position
        return tuple(tokens[position + step % period] for step in range(most))

    def num_same(self, tokens: Sequence[int]) -> int:
        """How many of the last tokens stand before that continuation as well; 0 without one."""
        position = self._place(tokens)
        if position is None:
            return 0
        most = min(MOST_COMPARED, position)
        same = 0
        while same < most and tokens[-1 - same] == tokens[position - 1 - same]:
            same += 1
        return same

    def _place(self, tokens: Sequence[int]) -> int | None:
        """The position after the longest suffix of ``tokens`` that was said before."""
        for size in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
            position = self._after.get(tuple(tokens[-size:]))
            if position is not None:
                return position
        return None
