"""What attention kernels need to know of a batch, as device arrays made once for all layers."""

import mlx.core as mx

from ..batch import Batch
from ..view import BatchView

SPLIT = 256  # positions; one for all batches and shapes, or results would depend on them


class WindowArrays:
    """Row by row: where the window starts, its length, its blocks."""

    def __init__(self, batch: Batch) -> None:
        self.starts = mx.array(batch.starts)
        self.lengths = mx.array(batch.lengths)
        self.tables = mx.array(batch.blocks)
        self.num_splits = (int((batch.starts + batch.lengths).max()) - 1) // SPLIT + 1


def window_arrays(view: BatchView) -> WindowArrays:
    """Return the arrays of ``view``, which all layers share."""
    if WindowArrays not in view.shared:
        view.shared[WindowArrays] = WindowArrays(view.batch)
    arrays: WindowArrays = view.shared[WindowArrays]
    return arrays
