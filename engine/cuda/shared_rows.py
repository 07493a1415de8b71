"""Which rows of a batch share leading positions that are to be read once for all of them."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..batch import Batch, Int32s
from .device import on_device
from .window import splits_for

KEYS = 64  # shared positions are a multiple of: a tile of kernels/shared_prefix.cuh


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """What kernels know of shared positions.

    ``packed``, int32, joins: of each group (num_groups, 3) a row, the row after the last, the
    positions that those share; of each row how many are shared (rows,), and the first row of its
    group (rows,); ``num_own_splits``. ``num_positions`` and ``num_own_splits`` are at least as many
    as any row has, shared and of its own.
    """

    packed: mx.array
    num_groups: int
    num_positions: int
    num_own_splits: int

    @classmethod
    def of(cls, batch: Batch) -> "SharedRows | None":
        """Those of ``batch``; None if nothing is shared, or less than a tile."""
        plan = SharedPlan.of(batch)
        return None if plan is None else plan.arrays()


@dataclass(frozen=True, slots=True, eq=False)
class SharedPlan:
    """The same before it goes to the device."""

    groups: Int32s
    positions: Int32s
    num_positions: int
    num_own_splits: int

    @classmethod
    def of(cls, batch: Batch) -> "SharedPlan | None":
        """That of ``batch``; None if nothing is shared, or less than a tile."""
        positions = np.zeros(batch.size, np.int32)
        groups: list[tuple[int, int, int]] = []
        for first, last, num_blocks in batch.together:
            count = num_blocks * batch.block_size // KEYS * KEYS
            if count:
                positions[first:last] = count
                groups.append((first, last, count))
        if not groups:
            return None
        own = splits_for(int((batch.starts + batch.lengths - positions).max()))
        return cls(np.array(groups, np.int32), positions, int(positions.max()), own)

    def rounded(self, num_rows: int) -> "SharedPlan":
        """The same for ``num_rows``, with sizes of which there are few: for compiled steps.

        Groups and rows that only fill up share nothing.
        """
        groups = np.zeros((_power_of_two(len(self.groups)), 3), np.int32)
        groups[: len(self.groups)] = self.groups
        positions = np.zeros(num_rows, np.int32)
        positions[: len(self.positions)] = self.positions
        return SharedPlan(
            groups,
            positions,
            _power_of_two(self.num_positions),
            _power_of_two(self.num_own_splits),
        )

    @property
    def packed(self) -> Int32s:
        """What ``SharedRows`` calls so."""
        first_rows = np.zeros_like(self.positions)
        for first, last, _ in self.groups.tolist():
            first_rows[first:last] = first
        parts = (self.groups.reshape(-1), self.positions, first_rows, [self.num_own_splits])
        return np.concatenate(parts, dtype=np.int32)

    def arrays(self) -> SharedRows:
        """Arrays on the device."""
        packed = on_device(mx.array(self.packed))
        return SharedRows(packed, len(self.groups), self.num_positions, self.num_own_splits)


def packed_size(num_rows: int, num_groups: int) -> int:
    """How many numbers ``SharedRows.packed`` has."""
    return 3 * num_groups + 2 * num_rows + 1 if num_groups else 0


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
