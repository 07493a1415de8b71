"""Attention of drafts that follow each other: the past is gathered once, pages stay as they are.

    gathered once: ....... past ....... | pending | draft | draft | room for more
                                          ^ start   each step puts its own K/V here, then attends

Pages may be written once an evaluation, gathered copies as often as one likes: so no step of a
chain has to wait for the one before, and nothing uncertain is left in the pages.
"""

import mlx.core as mx
import numpy as np

from ..attention.index import BatchIndex
from ..attention.paged import InPages, PagedCache
from ..batch import Batch
from ..pages import Pages
from ..spans import Span


class ChainCache(PagedCache):
    """One attention layer's share of a chain: what its module is given as ``cache``, every step.

    ``batch`` has rows as wide as their chains are long, the longest first. If it is only known on
    the device how much ``further`` than its starts they begin, (rows,), it has room for that too.
    """

    def __init__(
        self,
        pages: Pages,
        batch: Batch,
        *,
        rotary_shift: int = 0,
        further: mx.array | None = None,
    ) -> None:
        super().__init__(pages, BatchIndex(batch), rotary_shift=rotary_shift)
        self.batch = batch
        self._past = [pages.gather(self.numbers(span)) for span in batch.spans]
        self._further = further
        self._step = -1
        self._count = batch.size

    def advance(self, count: int) -> None:
        """Go on to the next token, of the first ``count`` rows."""
        self._step += 1
        self._count = count
        self.offset = self._positions(0, count) - self.rotary_shift

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[InPages, InPages]:
        """Put this step's K/V, (count, heads, 1, dim), where the next steps find them."""
        for number, span in enumerate(self.batch.spans):
            last = min(span.last, self._count)
            if last <= span.first:
                continue
            place = self._positions(span.first, last)[:, None, None, None]
            rows = slice(span.first, last)
            old_keys, old_values = self._past[number]
            if last < span.last:  # some have dropped out
                old_keys, old_values = (
                    past[: last - span.first] for past in (old_keys, old_values)
                )
            self._past[number] = (
                mx.put_along_axis(old_keys, place, keys[rows].astype(old_keys.dtype), axis=2),
                mx.put_along_axis(old_values, place, values[rows].astype(old_values.dtype), axis=2),
            )
        return InPages(self), InPages(self)

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Attention of ``queries``, (count, heads, 1, dim), over the past and the chain."""
        parts = []
        for span, (keys, values) in zip(self.batch.spans, self._past, strict=True):
            last = min(span.last, self._count)
            if last <= span.first:
                continue
            mask = self._mask(span, last)
            parts.append(
                mx.fast.scaled_dot_product_attention(
                    queries[span.first : last],
                    keys,
                    values,
                    scale=scale,
                    mask=mask,
                    sinks=sinks,
                )
            )
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)

    def _positions(self, first: int, last: int) -> mx.array:
        """Where the tokens of this step stand, of rows ``first`` to ``last`` - 1."""
        positions = mx.array((self.batch.starts[first:last] + self._step).astype(np.int32))
        return positions if self._further is None else positions + self._further[first:last]

    def _mask(self, span: Span, last: int) -> mx.array:
        """What they see, (rows, 1, 1, positions); see Batch.mask."""
        if self._further is None:
            mask = self.index.mask(span, self.window_size, self.rotary_shift)
            return mask[: last - span.first, :, self._step : self._step + 1]
        size = self.batch.block_size
        keys = mx.arange(span.first_block * size, span.num_blocks * size, dtype=mx.int32)
        positions = self._positions(span.first, last)[:, None, None, None]
        return (keys <= positions) & (keys >= self.rotary_shift)
