"""What attention kernels need to know of a batch, as device arrays made once for all layers."""

from dataclasses import dataclass

import mlx.core as mx

from ..batch import Batch
from ..view import BatchView

SPLIT = 256  # positions; one for all batches and shapes, or results would depend on them


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
        end = int((batch.starts + batch.lengths).max())
        starts, lengths, tables = map(mx.array, (batch.starts, batch.lengths, batch.blocks))
        return cls(starts, lengths, tables, splits_for(end))

    @property
    def num_rows(self) -> int:
        """Rows of the batch, padding included."""
        return int(self.starts.shape[0])


def splits_for(end: int) -> int:
    """How many splits cover positions 0 .. end - 1."""
    return (end - 1) // SPLIT + 1


def window_arrays(view: BatchView) -> WindowArrays:
    """Return the arrays of ``view``, which all layers share."""
    if WindowArrays not in view.shared:
        view.shared[WindowArrays] = WindowArrays.of(view.batch)
    arrays: WindowArrays = view.shared[WindowArrays]
    return arrays
