"""Attention of drafts that follow each other, by the kernel for short windows: K/V go to the pages.

    pages: ....... past ....... | pending | draft | draft |
                                  ^ start   each step writes its own place, then attends

The window that verifies the drafts writes all these places anew, as do later rounds where it
rejects them: nobody else reads there meanwhile.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np

from ..batch import Batch
from .attention_layer import CudaAttentionLayer, CudaPagedCache
from .window import WindowArrays, pack, splits_for


class CudaDraftChain(CudaPagedCache):
    """One attention layer's share of a chain: what its module is given as ``cache``, every step.

    ``batch`` has rows as wide as their chains are long, the longest first. If it is only known on
    the device how much ``further`` than its starts they begin, (rows,), it has room for that too.
    """

    def __init__(
        self, layer: CudaAttentionLayer, batch: Batch, further: mx.array | None = None
    ) -> None:
        end = int((batch.starts + batch.lengths).max())
        packed = mx.array(pack(batch.starts, np.ones_like(batch.lengths), batch.blocks))
        first = WindowArrays.unpacked(packed, batch.size, splits_for(end))
        if further is not None:
            first = replace(first, starts=first.starts + further)
        self._first = first
        self._step = -1
        super().__init__(layer, 1, self._first)

    def advance(self, count: int) -> None:
        """Go on to the next token, of the first ``count`` rows."""
        self._step += 1
        starts, lengths, tables = self._first.starts, self._first.lengths, self._first.tables
        if count < self._first.num_rows:
            starts, lengths, tables = starts[:count], lengths[:count], tables[:count]
        if self._step:
            starts = starts + self._step
        self._window = WindowArrays(starts, lengths, tables, self._first.num_splits)
        self.offset = starts - self.rotary_shift
