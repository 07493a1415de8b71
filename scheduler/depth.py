"""How many drafts the rows of a round may carry: a policy that is passed in."""

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from .sequence import Sequence


class DepthPolicy(Protocol):
    """Chooses the number of drafts of every decoding row of a round."""

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> Seq[int]:
        """Return how many drafts to run for each of the round's decoding rows; 0 for none.

        ``num_waiting`` sequences would take the place of one that ends.
        """
        ...

    def rests(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        """Decide that the round after the one in flight, of these rows, drafts nothing.

        False, and nothing is decided, where it may draft: ``depths`` is then asked when it is
        planned, and otherwise is not.
        """
        ...

    def holds_back(self) -> None:
        """Not all rows of a round that rests are launched ahead after all: some found no block."""
        ...

    def forget_round(self) -> None:
        """The round in flight failed; it will be observed by nobody."""
        ...


class NoDrafts:
    """Plain decoding."""

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> Seq[int]:
        """Return 0 for all."""
        return [0] * len(sequences)

    def rests(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        """Always."""
        return True

    def holds_back(self) -> None:
        """Nothing depends on it."""

    def forget_round(self) -> None:
        """Nothing was learnt from it."""


class FixedDepth:
    """The same number of drafts for every row of every round."""

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self._depth = depth

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> Seq[int]:
        """Return the depth for all."""
        return [self._depth] * len(sequences)

    def rests(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        """Never."""
        return False

    def holds_back(self) -> None:
        """Nothing depends on it."""

    def forget_round(self) -> None:
        """Nothing was learnt from it."""


class Found(NamedTuple):
    """Drafts of one row that are in hand, not computed for it; a policy may run them or not.

    ``evidence`` is how many words before them are the same as where they come from.
    """

    seq_id: int
    drafts: tuple[int, ...]
    evidence: int
