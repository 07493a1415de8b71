"""Chains of drafts, judgement of the windows before them included, as one graph for each shape.

    picked, windows, hidden -> following, last
    following, last -> step -> draft -> step -> draft ...

Step by step the host takes longer for a chain than the device. Graphs are traced for each number of
rows: to fill rows up takes as long.
"""

import mlx.core as mx
import numpy as np

from ..attention.layer import RunStep
from ..batch import Batch, Int32s
from ..drafting.offer import Unjudged
from ..likeliest import likeliest_on_device
from .accepting import accept, join
from .attention_layer import CudaAttentionLayer
from .compiled_body import MOST_ROWS
from .device import on_device
from .paged_cache import CudaPagedCache
from .upload import Upload
from .window import WindowArrays, padded, splits_for


class CompiledChain:
    """Runs ``run`` as often as there are to be drafts: of all rows as many."""

    def __init__(self, layer: CudaAttentionLayer, run: RunStep) -> None:
        self._layer = layer
        self._run = run
        self._compiled = mx.compile(self._trace)
        self._begun = mx.compile(self._trace_begin)
        self._lengths = mx.ones((MOST_ROWS,), mx.int32)
        mx.eval(self._lengths)
        self.undo()

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        self._upload = Upload()

    def begin(self, tokens: mx.array, hidden: mx.array, batch: Batch) -> mx.array:
        """See attention.layer.RunChain."""
        assert not batch.is_ragged
        tables, count = padded(batch.blocks), batch.width
        places = batch.starts + np.arange(count, dtype=np.int32)[:, None]
        packed = self._upload.write([tables, places])
        windows = self._begun(tokens, hidden, packed, tables.shape[1], count)
        self._upload.until(windows)
        return windows

    def __call__(self, before: Unjudged, tables: Int32s) -> tuple[mx.array, mx.array]:
        """See attention.layer.RunChain."""
        batch = before.batch
        assert not batch.is_ragged
        tables = padded(tables)
        packed = self._upload.write([tables, batch.starts + 1])
        windows, last = self._compiled(
            before.picked, before.windows, before.hidden, packed, tables.shape[1]
        )
        self._upload.until(windows)
        return windows, last

    def _trace(
        self,
        picked: mx.array,
        windows: mx.array,
        hidden: mx.array,
        packed: mx.array,
        num_blocks: int,
    ) -> tuple[mx.array, mx.array]:
        rows, width = windows.shape
        size = rows * num_blocks
        tokens, last, places = accept(picked, windows, hidden, packed[size : size + rows])
        tables = on_device(packed[:size]).reshape(rows, num_blocks)
        return self._chain(tokens, last, places, tables, width - 1), last

    def _trace_begin(
        self,
        tokens: mx.array,
        hidden: mx.array,
        packed: mx.array,
        num_blocks: int,
        count: int,
    ) -> mx.array:
        rows = tokens.size
        size = rows * (num_blocks + count)
        own = on_device(packed[:size])
        tables = own[: rows * num_blocks].reshape(rows, num_blocks)
        places = own[rows * num_blocks : size].reshape(count, rows)
        return self._chain(tokens, hidden, places, tables, count)

    def _chain(
        self, tokens: mx.array, hidden: mx.array, places: mx.array, tables: mx.array, count: int
    ) -> mx.array:
        rows, num_blocks = tables.shape
        num_splits = splits_for(num_blocks * self._layer.pages.block_size)
        state, found = hidden[:, None], [tokens]
        for step in range(count):
            window = WindowArrays(places[step], self._ones(rows), tables, num_splits)
            state, logits = self._run(tokens, state, CudaPagedCache(self._layer, 1, window))
            tokens = likeliest_on_device(logits)
            found.append(tokens)
        return join(found)

    def _ones(self, rows: int) -> mx.array:
        """A length for each of ``rows``, of those that are made once."""
        return self._lengths[:rows] if rows <= MOST_ROWS else mx.ones((rows,), mx.int32)
