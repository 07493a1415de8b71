"""Attention of drafts that follow each other: the past is gathered once, pages stay as they are.

    gathered once: ....... past ....... | pending | draft | draft | room for more
                                          ^ start   each step puts its own K/V here, then attends

Pages may be written once an evaluation, gathered copies as often as one likes: so all the steps of
a chain are a single evaluation, and nothing uncertain is left in the pages.
"""

import mlx.core as mx
import numpy as np

from ..attention.index import BatchIndex
from ..attention.paged import InPages, PagedCache
from ..batch import Batch
from ..pages import Pages


class ChainCache(PagedCache):
    """One attention layer's share of a chain: what its module is given as ``cache``, every step.

    ``batch`` has rows as wide as their chains are long, the longest first.
    """

    def __init__(self, pages: Pages, batch: Batch, *, rotary_shift: int = 0) -> None:
        super().__init__(pages, BatchIndex(batch), rotary_shift=rotary_shift)
        self.batch = batch
        self._past = [pages.gather(self.numbers(span)) for span in batch.spans]
        self._step = -1
        self._count = batch.size

    def advance(self, count: int) -> None:
        """Go on to the next token, of the first ``count`` rows."""
        self._step += 1
        self._count = count
        self.offset = mx.array(self.batch.starts[:count] + (self._step - self.rotary_shift))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[InPages, InPages]:
        """Put this step's K/V, (count, heads, 1, dim), where the next steps find them."""
        for number, span in enumerate(self.batch.spans):
            last = min(span.last, self._count)
            if last <= span.first:
                continue
            starts = self.batch.starts[span.first : last].astype(np.int32)
            place = mx.array((starts + self._step)[:, None, None, None])
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
            mask = self.index.mask(span, self.window_size, self.rotary_shift)
            parts.append(
                mx.fast.scaled_dot_product_attention(
                    queries[span.first : last],
                    keys,
                    values,
                    scale=scale,
                    mask=mask[: last - span.first, :, self._step : self._step + 1],
                    sinks=sinks,
                )
            )
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
