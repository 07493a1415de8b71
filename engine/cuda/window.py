"""What attention kernels need to know of a batch, as device arrays made once for all layers."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..batch import Batch, Int32s
from ..view import BatchView
from .device import on_device

# Positions of a split; the first has twice as many. One rule for all batches and shapes, or results
# would depend on them: short rows are not cut at all, and long ones can be spread.
SPLIT = 256
FEWEST_BLOCKS = 16  # of a table that is padded


@dataclass(frozen=True, slots=True, eq=False)
class WindowArrays:
    """Row by row: where the window starts, its length, its blocks.

    ``num_splits`` are at least as many as the longest row has.
    """

    starts: mx.array  # (rows,) int32
    lengths: mx.array  # (rows,) int32
    tables: mx.array  # (rows, blocks of the longest row at least) int32
    num_splits: int

    @classmethod
    def of(cls, batch: Batch) -> "WindowArrays":
        """Make those of ``batch``."""
        packed = mx.array(pack(batch.starts, batch.lengths, batch.blocks))
        end = int((batch.starts + batch.lengths).max())
        return cls.unpacked(packed, batch.size, splits_for(end))

    @classmethod
    def unpacked(cls, packed: mx.array, num_rows: int, num_splits: int) -> "WindowArrays":
        """Make those that ``pack`` joined, on the device."""
        own = on_device(packed)
        starts, lengths = own[:num_rows], own[num_rows : 2 * num_rows]
        tables = own[2 * num_rows : packed.size].reshape(num_rows, -1)
        return cls(starts, lengths, tables, num_splits)

    @property
    def num_rows(self) -> int:
        """Rows of the batch, padding included."""
        return int(self.starts.shape[0])


def pack(starts: Int32s, lengths: Int32s, blocks: Int32s) -> Int32s:
    """Join (rows,), (rows,) and (rows, blocks), so that they reach the device by one copy."""
    return np.concatenate([starts, lengths, blocks.reshape(-1)])


def splits_for(end: int) -> int:
    """How many splits cover positions 0 .. end - 1."""
    return max(1, (end - 1) // SPLIT)


def table_width(num_blocks: int) -> int:
    """How many blocks tables of compiled steps are padded to: one of few numbers."""
    return max(FEWEST_BLOCKS, 1 << (num_blocks - 1).bit_length())


def padded(tables: Int32s) -> Int32s:
    """Return ``tables`` (rows, blocks) as wide as those of compiled steps are."""
    rows, width = tables.shape
    if width == table_width(width):
        return tables
    wider = np.zeros((rows, table_width(width)), np.int32)
    wider[:, :width] = tables
    return wider


def window_arrays(view: BatchView) -> WindowArrays:
    """Return the arrays of ``view``, which all layers share."""
    if WindowArrays not in view.shared:
        view.shared[WindowArrays] = WindowArrays.of(view.batch)
    arrays: WindowArrays = view.shared[WindowArrays]
    return arrays
