"""How many drafts a row may carry: a policy that is passed in."""

from typing import Protocol

from .sequence import Sequence


class DepthPolicy(Protocol):
    """Chooses the number of drafts of one sequence's next row."""

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        """Return how many drafts to run in a round with ``num_rows`` decoding rows; 0 for none."""
        ...


class NoDrafts:
    """Plain decoding."""

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        """Return 0."""
        return 0


class FixedDepth:
    """The same number of drafts for every row of every round."""

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self._depth = depth

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        """Return the depth."""
        return self._depth
