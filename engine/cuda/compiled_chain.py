"""Chains of drafts, judgement of the windows before them included, as one graph for each shape.

    picked, windows, hidden -> following, last
    following, last -> step -> draft -> step -> draft ...

Step by step the host takes longer for a chain than the device.
"""

import mlx.core as mx

from ..attention.layer import RunStep
from ..batch import Int32s
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
    """Runs ``run`` as often as the windows before have drafts; all of them have as many."""

    def __init__(self, layer: CudaAttentionLayer, run: RunStep) -> None:
        self._layer = layer
        self._run = run
        self._compiled = mx.compile(self._trace)
        self._lengths = mx.ones((MOST_ROWS,), mx.int32)
        mx.eval(self._lengths)
        self.undo()

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        self._upload = Upload()

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
        num_splits = splits_for(num_blocks * self._layer.pages.block_size)
        state, found = last[:, None], [tokens]
        for step in range(width - 1):
            window = WindowArrays(places[step], self._ones(rows), tables, num_splits)
            state, logits = self._run(tokens, state, CudaPagedCache(self._layer, 1, window))
            tokens = likeliest_on_device(logits)
            found.append(tokens)
        return join(found), last

    def _ones(self, rows: int) -> mx.array:
        """A length for each of ``rows``, of those that are made once."""
        return self._lengths[:rows] if rows <= MOST_ROWS else mx.ones((rows,), mx.int32)
