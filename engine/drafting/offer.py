"""What a drafter proposes for one round, on the device until it is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np

from scheduler.round import Row

from ..batch import Batch
from .chain import Chain


@dataclass(frozen=True, eq=False)
class Unjudged:
    """Windows of one certain token each that are launched; what stands only the device knows."""

    batch: Batch
    hidden: mx.array  # (rows, width, size): the target's after its final norm
    picked: mx.array  # uint32: the tokens picked at the first row's positions, the second's, ...
    windows: mx.array  # (rows, width) int32: a token and its drafts, padded with anything

    @property
    def rows(self) -> list[Row]:
        """The rows of the windows."""
        return self.batch.rows

    @property
    def num_drafts(self) -> int:
        """The most drafts of a row."""
        return self.batch.width - 1

    @property
    def accepted(self) -> mx.array:
        """So many of the drafts stand, (rows,) int32."""
        return self._judged[0]

    @property
    def following(self) -> mx.array:
        """The token picked after those, (rows,) uint32."""
        return self._judged[1]

    @cached_property
    def _judged(self) -> tuple[mx.array, mx.array]:
        batch, drafts = self.batch, self.windows[:, 1:]
        if not batch.is_ragged:
            return accept(self.picked.reshape(batch.size, batch.width), drafts)
        firsts, counts = np.cumsum(batch.lengths) - batch.lengths, batch.lengths - 1
        inside = np.minimum(np.arange(batch.width), counts[:, None])
        picked = self.picked[mx.array((firsts[:, None] + inside).astype(np.int32))]
        return accept(picked, drafts, mx.array(np.arange(self.num_drafts) < counts[:, None]))


def accept(
    picked: mx.array, drafts: mx.array, is_draft: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Accept ``drafts`` (rows, most) up to the first that is not what was picked in its place.

    ``picked`` (rows, most + 1), uint32. Returns how many stand, and the token picked after them:
    (rows,), int32 and uint32. It is the rule of ``forward_pass.judge``, on the device.
    """
    same = picked[:, :-1] == drafts.astype(mx.uint32)
    if is_draft is not None:
        same = same & is_draft
    accepted = mx.cumprod(same.astype(mx.int32), axis=1).sum(axis=1)
    return accepted, mx.take_along_axis(picked, accepted[:, None], axis=1)[:, 0]


class Offer:
    """Drafts of several sequences, those with the most first."""

    def __init__(self, seq_ids: Sequence[int], chain: Chain, counts: Sequence[int]) -> None:
        """``counts``: drafts of each sequence."""
        self._chain = chain
        self.counts = dict(zip(seq_ids, counts, strict=True))
        self._lines = {seq_id: line for line, seq_id in enumerate(seq_ids)}
        self._starts: dict[int, int] = {}

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate for the device to begin."""
        return self._chain.steps

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
        return self._in_order(self._drafts(), seq_ids)

    def windows(self, seq_ids: Sequence[int], width: int) -> mx.array | None:
        """Return the windows of ``seq_ids``, (rows, width) int32, if the device has them ready."""
        return None

    def read(self) -> Mapping[int, tuple[int, ...]]:
        """Return the drafts by sequence. Evaluates."""
        return dict(zip(self._lines, self._chain.all(), strict=True))

    def _drafts(self) -> mx.array:
        count = len(self._lines)
        padded = [
            step if step.shape[0] == count else mx.pad(step, (0, count - step.shape[0]))
            for step in self._chain.steps
        ]
        return mx.stack(padded, axis=1).astype(mx.int32)

    def _in_order(self, lines: mx.array, seq_ids: Sequence[int]) -> mx.array:
        order = [self._lines.get(seq_id, 0) for seq_id in seq_ids]
        return lines if order == list(range(len(self._lines))) else lines[mx.array(order)]


class WindowOffer(Offer):
    """Windows that are whole on the device: tokens that nobody has read, and drafts after them."""

    def __init__(self, seq_ids: Sequence[int], windows: mx.array) -> None:
        """``windows``: (rows, width), int32."""
        super().__init__(seq_ids, Chain(), [windows.shape[1] - 1] * len(seq_ids))
        self._windows = windows

    @property
    def arrays(self) -> list[mx.array]:
        return [self._windows]

    def windows(self, seq_ids: Sequence[int], width: int) -> mx.array | None:
        is_whole = width <= self._windows.shape[1] and self.counts.keys() >= set(seq_ids)
        return self._in_order(self._windows[:, :width], seq_ids) if is_whole else None

    def read(self) -> Mapping[int, tuple[int, ...]]:
        lines: list[list[int]] = self._windows[:, 1:].tolist()  # type: ignore[assignment]  # of two dimensions
        return dict(zip(self._lines, map(tuple, lines), strict=True))

    def _drafts(self) -> mx.array:
        return self._windows[:, 1:]
