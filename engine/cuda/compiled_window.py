"""Short windows of one attention layer's module, as one graph for each of few shapes.

What takes the tokens of a round into a draft head's pages: building that anew takes the host longer
than the device.
"""

import mlx.core as mx

from ..attention.layer import RunWindow
from ..view import BatchView
from .attention_layer import CudaAttentionLayer
from .compiled_body import is_short
from .paged_cache import CudaPagedCache
from .upload import Upload
from .window import WindowArrays, padded, splits_for, table_width


class CompiledWindow:
    """Stands for ``run`` over an open cache, but for its result: only the pages are evaluated."""

    def __init__(self, layer: CudaAttentionLayer, run: RunWindow) -> None:
        self._layer = layer
        self._run = run
        self._compiled = mx.compile(self._trace)
        self.undo()

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        self._upload = Upload()

    def __call__(
        self, view: BatchView, before: mx.array, hidden: mx.array
    ) -> list[mx.array] | None:
        """See attention.layer.TakeIn."""
        batch = view.batch
        if not is_short(batch):
            return None
        size = batch.size * (2 + table_width(batch.blocks.shape[1]))
        parts = [batch.starts, batch.lengths, padded(batch.blocks)]
        packed = self._upload.write(parts)
        done = self._compiled(view.tokens, before, hidden, packed, size)
        self._upload.until(done)
        return [done]

    def _trace(
        self, tokens: mx.array, before: mx.array, hidden: mx.array, packed: mx.array, size: int
    ) -> mx.array:
        rows, width = tokens.shape
        previous = before[:, None]
        if width > 1:
            previous = mx.concatenate([previous, hidden[:, :-1]], axis=1)
        num_splits = splits_for((size // rows - 2) * self._layer.pages.block_size)
        window = WindowArrays.unpacked(packed[:size], rows, num_splits)
        cache = CudaPagedCache(self._layer, width, window)
        self._run(tokens, previous, cache)
        (done,) = cache.done
        return done
