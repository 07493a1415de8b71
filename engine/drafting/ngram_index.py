"""Where in a sequence its last words were said before, kept up to date token by token."""

from collections.abc import Sequence

LONGEST = 4
SHORTEST = 2


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
        for size in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
            position = self._after.get(tuple(tokens[-size:]))
            if position is not None:
                period = len(tokens) - position
                return tuple(tokens[position + step % period] for step in range(most))
        return ()
