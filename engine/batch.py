"""Rows that run in one forward pass, as arrays: the numpy side of a round.

Rows are right-padded to the longest window of the batch. A padding token writes to scratch block 0,
is masked out of recurrent layers, and its output is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.round import PrefixGroup, Row

from .spans import GroupSpan, Span, cut_spans, group_span

Int32s = npt.NDArray[np.int32]

# Where reading once pays, and how far that was measured (benchmarks/groups.py).
FEWEST_SPARED = 128  # blocks that a group need not gather
WIDEST = 64  # tokens of a window


@dataclass(frozen=True, slots=True)
class Window:
    """A row and the drafts the engine proposed for it; what one row of a batch runs."""

    row: Row
    drafts: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the window."""
        return len(self.row.tokens) + len(self.drafts)


class Tables:
    """Block tables as arrays, kept between rounds: most rounds change few."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[tuple[int, ...], Int32s]] = {}

    def of(self, row: Row) -> Int32s:
        """The blocks of ``row``, (blocks,)."""
        kept = self._kept.get(row.seq_id)
        if kept is None or kept[0] is not row.blocks:
            kept = self._kept[row.seq_id] = row.blocks, np.array(row.blocks, np.int32)
        return kept[1]

    def forget(self, seq_id: int) -> None:
        """A sequence has ended."""
        self._kept.pop(seq_id, None)


class Batch:
    """Windows of one forward pass: the longest table first, unless their order is to be kept.

    Rows of one of the ``groups`` stand next to each other, if it is worth it and they may move.
    Without ``by_length`` rows stay where they are but for that: kernels read each row's own table.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        block_size: int,
        groups: Sequence[PrefixGroup] = (),
        *,
        keep_order: bool = False,
        by_length: bool = True,
        tables: Tables | None = None,
    ) -> None:
        self.block_size = block_size
        self.windows = list(windows)
        self._groups = groups
        self._numbers: dict[int, int] = {}  # the group of each row in one, by sequence
        if not keep_order:
            self._numbers = self._choose_groups(groups)
            self._sort(self._numbers, by_length=by_length)
        self.size = len(self.windows)
        lengths = [window.length for window in self.windows]
        starts = [window.row.start for window in self.windows]
        self.used = [  # blocks of each row
            -(-(start + length) // block_size)
            for start, length in zip(starts, lengths, strict=True)
        ]
        self.width = max(lengths)
        self.is_ragged = min(lengths) != self.width
        self.lengths = np.array(lengths, np.int32)
        self.starts = np.array(starts, np.int32)
        self.blocks = self._padded_tables(tables or Tables())

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The batch in spans, for those who gather pages."""
        return cut_spans(self.used)

    @cached_property
    def parts(self) -> tuple[Span | GroupSpan, ...]:
        """The same, where what a group shares is gathered once."""
        return self._cut_parts() if self._numbers else self.spans

    def _choose_groups(self, groups: Sequence[PrefixGroup]) -> dict[int, int]:
        """The number of the group of each row that is in one worth its cost, by sequence."""
        chosen: dict[int, int] = {}
        if not groups or max(window.length for window in self.windows) > WIDEST:
            return chosen
        here = {window.row.seq_id for window in self.windows}
        for number, group in enumerate(groups):
            members = [seq_id for seq_id in group.seq_ids if seq_id in here]
            if (len(members) - 1) * group.num_blocks >= FEWEST_SPARED:
                chosen |= dict.fromkeys(members, number)
        return chosen

    def _sort(self, numbers: Mapping[int, int], *, by_length: bool) -> None:
        """The longest first; a group goes where its longest row does, and stays together."""
        if not by_length:
            if numbers:
                self.windows.sort(key=lambda window: numbers.get(window.row.seq_id, -1))
            return
        if not numbers:
            self.windows.sort(key=self._blocks_used, reverse=True)
            return
        used = [self._blocks_used(window) for window in self.windows]
        own = [numbers.get(window.row.seq_id, -1) for window in self.windows]
        longest: dict[int, int] = {}
        for number, count in zip(own, used, strict=True):
            if count > longest.get(number, 0):
                longest[number] = count
        keys = [
            (-(count if number < 0 else longest[number]), number, -count)
            for number, count in zip(own, used, strict=True)
        ]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self.windows = [self.windows[index] for index in order]

    @cached_property
    def together(self) -> tuple[tuple[int, int, int], ...]:
        """Rows [first, last) that stand next to each other, and the blocks that they share.

        No blocks where they are in no group.
        """
        numbers = [self._numbers.get(window.row.seq_id, -1) for window in self.windows]
        found, first = [], 0
        for last in range(1, self.size + 1):
            number = numbers[first]
            if last == self.size or numbers[last] != number:
                found.append((first, last, self._groups[number].num_blocks if number >= 0 else 0))
                first = last
        return tuple(found)

    def _cut_parts(self) -> tuple[Span | GroupSpan, ...]:
        parts: list[Span | GroupSpan] = []
        for first, last, num_blocks in self.together:
            used = self.used[first:last]
            if num_blocks:
                parts.append(group_span(used, num_blocks, first))
            else:
                parts += cut_spans(used, first)
        return tuple(parts)

    def _blocks_used(self, window: Window) -> int:
        return -(-(window.row.start + window.length) // self.block_size)

    def _padded_tables(self, tables: Tables) -> Int32s:
        padded = np.zeros((self.size, max(self.used)), np.int32)
        for line, window, used in zip(padded, self.windows, self.used, strict=True):
            line[:used] = tables.of(window.row)[:used]
        return padded

    @property
    def rows(self) -> list[Row]:
        """The rows of the windows."""
        return [window.row for window in self.windows]

    @property
    def has_drafts(self) -> bool:
        """Whether any window has drafts."""
        return any(window.drafts for window in self.windows)

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
        """Flat block numbers to gather for ``span``, (rows, heads, its blocks)."""
        tables = self.blocks[span.first : span.last, span.first_block : span.num_blocks]
        heads = np.arange(num_kv_heads, dtype=np.int32) * num_blocks
        return mx.array(tables[:, None, :] + heads[:, None])

    def mask(self, span: Span, window_size: int | None = None, first: int = 0) -> mx.array:
        """Which positions each query of ``span`` may see: (rows, 1, width, positions), bool.

        A query at position p sees p - window_size < position <= p; nothing at or after its own
        row's end is ever seen, which is all that rejecting a draft has to mean here. Positions
        before ``first`` hold nothing: only queries there see them, for they must see something.
        """
        bounds = (span.first_block * self.block_size, span.num_blocks * self.block_size)
        keys = np.arange(*bounds, dtype=np.int32)
        queries = self.starts[span.first : span.last, None] + np.arange(self.width, dtype=np.int32)
        seen = keys <= queries[..., None]
        if window_size is not None:
            seen &= keys > queries[..., None] - window_size
        if first:
            seen &= (keys >= first) | (queries[..., None] < first)
        return mx.array(seen[:, None])
