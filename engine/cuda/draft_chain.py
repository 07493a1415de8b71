"""Attention of drafts that follow each other, by the kernel for short windows: K/V go to the pages.

    pages: ....... past ....... | pending | draft | draft |
                                  ^ start   each step writes its own place, then attends

The window that verifies the drafts writes all these places anew, as do later rounds where it
rejects them: nobody else reads there meanwhile.
"""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from ..attention.layer import RunStep
from ..batch import Batch
from .attention_layer import CudaAttentionLayer
from .paged_cache import CudaPagedCache
from .window import WindowArrays, pack, padded, splits_for


class CudaDraftChain(CudaPagedCache):
    """One attention layer's share of a chain: what its module is given as ``cache``, every step.

    ``batch`` has rows as wide as their chains are long, the longest first. If it is only known on
    the device how much ``further`` than its starts they begin, (rows,), it has room for that too.
    """

    def __init__(
        self, layer: CudaAttentionLayer, batch: Batch, further: mx.array | None = None
    ) -> None:
        end = int((batch.starts + batch.lengths).max())
        ones = np.ones_like(batch.lengths)
        packed = mx.array(pack(batch.starts, ones, padded(batch.blocks)))
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


def compile_step(layer: CudaAttentionLayer, run: RunStep) -> RunStep:
    """Return ``run`` as a graph that is traced once for each number of rows and width of tables.

    Its building would take the host longer than the step takes on the device.
    """

    def trace(
        tokens: mx.array, hidden: mx.array, starts: mx.array, lengths: mx.array, tables: mx.array
    ) -> tuple[mx.array, mx.array]:
        num_splits = splits_for(tables.shape[1] * layer.pages.block_size)
        window = WindowArrays(starts, lengths, tables, num_splits)
        return run(tokens, hidden, CudaPagedCache(layer, 1, window))

    compiled = mx.compile(trace)

    def step(tokens: mx.array, hidden: mx.array, cache: Any) -> tuple[mx.array, mx.array]:
        window: WindowArrays = cache.window
        found: tuple[mx.array, mx.array] = compiled(
            tokens, hidden, window.starts, window.lengths, window.tables
        )
        return found

    return step
