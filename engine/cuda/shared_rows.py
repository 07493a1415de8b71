"""Which rows of a batch share leading positions that are to be read once for all of them."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..batch import Batch, Int32s
from .device import on_device
from .paged_kernel import KEYS as TILE
from .window import splits_for

KEYS = 64  # shared positions are a multiple of: a tile of kernels/shared_prefix.cuh
FIRST_BLOCKS = 16  # of a row, see kernels/paged_window.cuh: of each key tile


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """What kernels know of shared positions.

    ``packed``, int32, joins: of each group (num_groups, 3) a row, the row after the last, the
    positions that those share; of each row how many are shared (rows,), and the blocks of the first
    positions that are not (rows, FIRST_BLOCKS); ``num_own_splits``. ``num_positions`` and
    ``num_own_splits`` are at least as many as any row has, shared and of its own.
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
    first_blocks: Int32s
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
        most = int(positions.max())
        return cls(
            np.array(groups, np.int32), positions, _first_blocks(batch, positions), most, own
        )

    def rounded(self, num_rows: int) -> "SharedPlan":
        """The same for ``num_rows``, with sizes of which there are few: for compiled steps.

        Groups and rows that only fill up share nothing.
        """
        return SharedPlan(
            _filled_up(self.groups, _power_of_two(len(self.groups))),
            _filled_up(self.positions, num_rows),
            _filled_up(self.first_blocks, num_rows),
            _power_of_two(self.num_positions),
            _power_of_two(self.num_own_splits),
        )

    @property
    def packed(self) -> Int32s:
        """What ``SharedRows`` calls so."""
        parts = (self.groups, self.positions, self.first_blocks, np.array(self.num_own_splits))
        return np.concatenate([part.reshape(-1) for part in parts], dtype=np.int32)

    def arrays(self) -> SharedRows:
        """Arrays on the device."""
        packed = on_device(mx.array(self.packed))
        return SharedRows(packed, len(self.groups), self.num_positions, self.num_own_splits)


def packed_size(num_rows: int, num_groups: int) -> int:
    """How many numbers ``SharedRows.packed`` has."""
    return 3 * num_groups + num_rows * (1 + FIRST_BLOCKS) + 1 if num_groups else 0


def _first_blocks(batch: Batch, positions: Int32s) -> Int32s:
    own = positions[:, None] + np.arange(FIRST_BLOCKS, dtype=np.int32) * TILE
    last = batch.blocks.shape[1] - 1
    rows = np.arange(batch.size)[:, None]
    found: Int32s = batch.blocks[rows, np.minimum(own // batch.block_size, last)]
    return found


def _filled_up(numbers: Int32s, length: int) -> Int32s:
    """``numbers`` with zeros after them: np.pad takes ten times as long."""
    filled = np.zeros((length, *numbers.shape[1:]), np.int32)
    filled[: len(numbers)] = numbers
    return filled


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
