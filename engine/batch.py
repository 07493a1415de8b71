"""Rows that run in one forward pass, as arrays: the numpy side of a round.

Rows are right-padded to the longest window of the batch. A padding token writes to scratch block 0,
is masked out of recurrent layers, and its output is not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.round import Row

Int32s = npt.NDArray[np.int32]

MAX_GATHER_OVERHEAD = 1.25  # blocks gathered over blocks held, see Span


@dataclass(frozen=True, slots=True)
class Span:
    """Adjacent rows [first, last) whose pages are gathered together.

    Each row is gathered as wide as the longest; so that little is gathered for nothing, a span
    ends before that would exceed MAX_GATHER_OVERHEAD times the blocks its rows hold.
    """

    first: int
    last: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Window:
    """A row and the drafts the engine proposed for it; what one row of a batch runs."""

    row: Row
    drafts: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the window."""
        return len(self.row.tokens) + len(self.drafts)


class Batch:
    """Windows of one forward pass: the longest table first, unless their order is to be kept."""

    def __init__(
        self, windows: Sequence[Window], block_size: int, *, keep_order: bool = False
    ) -> None:
        self.block_size = block_size
        self.windows = list(windows)
        if not keep_order:
            self.windows.sort(key=self._blocks_used, reverse=True)
        self.size = len(self.windows)
        self.lengths = np.array([window.length for window in self.windows], np.int32)
        self.starts = np.array([window.row.start for window in self.windows], np.int32)
        self.width = int(self.lengths.max())
        self.is_ragged = bool((self.lengths != self.width).any())
        self.blocks = self._padded_tables()
        self.spans = _spans([self._blocks_used(window) for window in self.windows])

    def _blocks_used(self, window: Window) -> int:
        return -(-(window.row.start + window.length) // self.block_size)

    def _padded_tables(self) -> Int32s:
        widest = max(self._blocks_used(window) for window in self.windows)
        tables = np.zeros((self.size, widest), np.int32)
        for table, window in zip(tables, self.windows, strict=True):
            used = self._blocks_used(window)
            table[:used] = window.row.blocks[:used]
        return tables

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """(rows, width): False where a token is padding."""
        valid: npt.NDArray[np.bool_] = np.arange(self.width) < self.lengths[:, None]
        return valid

    def tokens(self) -> mx.array:
        """Token ids, (rows, width), padded with 0."""
        ids = np.zeros((self.size, self.width), np.int32)
        for line, window in zip(ids, self.windows, strict=True):
            line[: window.length] = window.row.tokens + window.drafts
        return mx.array(ids)

    def places(self, num_kv_heads: int, num_blocks: int) -> mx.array:
        """Flat rows of a layer's pages that the window's K/V go to, (rows, heads, width)."""
        positions = self.starts[:, None] + np.arange(self.width, dtype=np.int32)
        index = np.minimum(positions // self.block_size, self.blocks.shape[1] - 1)
        place = np.take_along_axis(self.blocks, index, axis=1) * self.block_size
        inside = positions % self.block_size
        place = np.where(self.valid, place + inside, inside)  # padding goes to scratch block 0
        heads = np.arange(num_kv_heads, dtype=np.int32) * np.int32(num_blocks * self.block_size)
        return mx.array(place[:, None, :] + heads[:, None])

    def block_numbers(self, span: Span, num_kv_heads: int, num_blocks: int) -> mx.array:
        """Flat block numbers to gather for ``span``, (rows, heads, span.num_blocks)."""
        tables = self.blocks[span.first : span.last, : span.num_blocks]
        heads = np.arange(num_kv_heads, dtype=np.int32) * num_blocks
        return mx.array(tables[:, None, :] + heads[:, None])

    def mask(self, span: Span, window_size: int | None = None, first: int = 0) -> mx.array:
        """Which positions each query of ``span`` may see: (rows, 1, width, positions), bool.

        A query at position p sees p - window_size < position <= p; nothing at or after its own
        row's end is ever seen, which is all that rejecting a draft has to mean here. Positions
        before ``first`` hold nothing: only queries there see them, for they must see something.
        """
        keys = np.arange(span.num_blocks * self.block_size, dtype=np.int32)
        queries = self.starts[span.first : span.last, None] + np.arange(self.width, dtype=np.int32)
        seen = keys <= queries[..., None]
        if window_size is not None:
            seen &= keys > queries[..., None] - window_size
        if first:
            seen &= (keys >= first) | (queries[..., None] < first)
        return mx.array(seen[:, None])


def _spans(blocks_used: Sequence[int]) -> tuple[Span, ...]:
    """Cut rows, best in descending order of blocks used, so that little is gathered for nothing."""
    spans = []
    first, widest, held = 0, 0, 0
    for index, used in enumerate(blocks_used):
        wider = max(widest, used)
        if index > first and wider * (index - first + 1) > MAX_GATHER_OVERHEAD * (held + used):
            spans.append(Span(first, index, widest))
            first, wider, held = index, used, 0
        widest = wider
        held += used
    spans.append(Span(first, len(blocks_used), widest))
    return tuple(spans)
