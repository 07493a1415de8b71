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
