"""Which rows of a batch share leading splits that are to be read once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import mlx.core as mx
import numpy as np

from ..batch import Batch, Int32s
from ..spans import GroupSpan
from .device import on_device
from .window import SPLIT, splits_for

BLOCKS = 128  # of a launch, about: one for each multiprocessor


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """What kernels know of shared splits.

    ``items`` (any, 3) int32: a row, the row after the last, the splits those share; ``splits``
    (rows,) int32: how many of each row's splits are shared. ``num_splits`` and ``num_own_splits``
    are at least as many as any row has, shared and of its own.
    """

    items: mx.array
    splits: mx.array
    num_splits: int
    num_own_splits: int

    @classmethod
    def of(cls, batch: Batch, num_kv_heads: int) -> "SharedRows | None":
        """Those of ``batch``; None if nothing is shared, or less than a split."""
        plan = SharedPlan.of(batch, num_kv_heads)
        return None if plan is None else plan.arrays()


@dataclass(frozen=True, slots=True, eq=False)
class SharedPlan:
    """The same before it goes to the device."""

    items: Int32s
    splits: Int32s
    num_splits: int
    num_own_splits: int

    @classmethod
    def of(cls, batch: Batch, num_kv_heads: int) -> "SharedPlan | None":
        """That of ``batch``; None if nothing is shared, or less than a split."""
        shared = np.zeros(batch.size, np.int32)
        groups: list[tuple[int, int, int]] = []
        for part in batch.parts:
            if isinstance(part, GroupSpan):
                count = part.shared.num_blocks * batch.block_size // SPLIT
                if count:
                    first, last = part.own[0].first, part.own[-1].last
                    shared[first:last] = count
                    groups.append((first, last, count))
        if not groups:
            return None
        ends = batch.starts + batch.lengths
        own = max(splits_for(int(end)) - int(n) for end, n in zip(ends, shared, strict=True))
        return cls(_cut(groups, num_kv_heads), shared, int(shared.max()), own)

    def rounded(self, num_rows: int) -> "SharedPlan":
        """The same for ``num_rows``, with sizes of which there are few: for compiled steps.

        Items and rows that only fill up share nothing.
        """
        items = np.zeros((_power_of_two(len(self.items)), 3), np.int32)
        items[: len(self.items)] = self.items
        splits = np.zeros(num_rows, np.int32)
        splits[: len(self.splits)] = self.splits
        return SharedPlan(
            items, splits, _power_of_two(self.num_splits), _power_of_two(self.num_own_splits)
        )

    def arrays(self) -> SharedRows:
        """Arrays on the device."""
        items, splits = (on_device(mx.array(a)) for a in (self.items, self.splits))
        return SharedRows(
            items[: self.items.size].reshape(self.items.shape),
            splits[: self.splits.size],
            self.num_splits,
            self.num_own_splits,
        )


def _cut(groups: Sequence[tuple[int, int, int]], num_kv_heads: int) -> Int32s:
    """Cut groups, (first row, last, splits), into items for about BLOCKS blocks in all."""
    blocks = num_kv_heads * sum(splits for _, _, splits in groups)
    pieces = max(1, BLOCKS // blocks)
    items = []
    for first, last, splits in groups:
        edges = np.linspace(first, last, min(pieces, last - first) + 1).astype(int)
        items += [(begin, end, splits) for begin, end in pairwise(edges)]
    return np.array(items, np.int32)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
