"""What a drafter proposes for one round, on the device until it is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from scheduler.round import Row

from .chain import Chain


@dataclass(frozen=True, slots=True, eq=False)
class Unjudged:
    """Windows of one certain token each that are launched; what stands only the device knows."""

    rows: Sequence[Row]
    num_drafts: int  # the most of a row
    hidden: mx.array  # (rows, width, size): the target's after its final norm
    accepted: mx.array  # (rows,) int32, so many of the drafts
    following: mx.array  # (rows,) uint32: the token picked after them


class Offer:
    """Drafts of several sequences, those with the most first."""

    def __init__(self, seq_ids: Sequence[int], chain: Chain, counts: Sequence[int]) -> None:
        """``counts``: drafts of each sequence."""
        self.chain = chain
        self.counts = dict(zip(seq_ids, counts, strict=True))
        self._lines = {seq_id: line for line, seq_id in enumerate(seq_ids)}
        self._starts: dict[int, int] = {}

    def stand(self, seq_id: int, start: int) -> None:
        """Say where the window begins that is to verify drafts of a sequence, now it is known."""
        self._starts[seq_id] = start

    def fits(self, row: Row) -> bool:
        """Whether there are as many drafts as ``row`` may carry, for where it starts."""
        stands = self._starts.get(row.seq_id) == row.start
        return stands and self.counts.get(row.seq_id, 0) >= row.num_drafts

    def tokens(self, seq_ids: Sequence[int]) -> mx.array:
        """Return the drafts of ``seq_ids``, (rows, most), padded with anything.

        A sequence without any may be among them.
        """
        steps = self.chain.steps
        count = len(self._lines)
        padded = [
            step if step.shape[0] == count else mx.pad(step, (0, count - step.shape[0]))
            for step in steps
        ]
        drafts = mx.stack(padded, axis=1).astype(mx.int32)
        order = [self._lines.get(seq_id, 0) for seq_id in seq_ids]
        return drafts if order == list(range(count)) else drafts[mx.array(order)]

    def read(self) -> Mapping[int, tuple[int, ...]]:
        """Return the drafts by sequence. Evaluates."""
        return dict(zip(self._lines, self.chain.all(), strict=True))
