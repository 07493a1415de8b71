"""Attention over pages whose rows are divided among the lanes."""

from typing import Any

import mlx.core as mx

from ..attention.layer import AttentionLayer
from ..attention.paged import PagedCache
from ..attention.tiles import HIDDEN
from ..spans import Span
from ..view import BatchView
from .lanes import Lanes

LANE_VALUES = 1 << 18  # of the keys and values gathered: from here on the handing over is worth it


class LaneAttention(AttentionLayer):
    """K/V in pages; where it pays every lane gathers and attends for rows of its own."""

    def __init__(self, *args: Any, lanes: Lanes, **choices: Any) -> None:
        super().__init__(*args, **choices)
        self.lanes = lanes

    def open(self, view: BatchView) -> "LaneCache":
        return self._open(LaneCache, view, lanes=self.lanes)


class LaneCache(PagedCache):
    """A PagedCache that divides the rows of each span."""

    def __init__(self, *args: Any, lanes: Lanes, **choices: Any) -> None:
        super().__init__(*args, **choices)
        self.lanes = lanes

    def _attend_span(
        self, span: Span, queries: mx.array, scale: float, sinks: mx.array | None
    ) -> mx.array:
        outputs = []
        for stream, low, end in self._lanes_for(span).divide(span.last - span.first):
            rows = Span(span.first + low, span.first + end, span.num_blocks, span.first_block)
            with mx.stream(stream):
                outputs.append(self._attend_rows(rows, queries, scale, sinks))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)

    def _attend_rows(
        self, span: Span, queries: mx.array, scale: float, sinks: mx.array | None
    ) -> mx.array:
        if queries.shape[2] > 1 or queries.dtype != mx.float32 or sinks is not None:
            return super()._attend_span(span, queries, scale, sinks)
        keys, values = self.pages.gather(self.numbers(span))
        mask = self.index.mask(span, self.window_size, self.rotary_shift)
        return attend_one(queries[span.first : span.last] * scale, keys, values, mask)

    def _lanes_for(self, span: Span) -> Lanes:
        shape = self.pages.shape
        positions = (span.num_blocks - span.first_block) * self.pages.block_size
        each = shape.num_kv_heads * (shape.key_dim + shape.value_dim)
        values = (span.last - span.first) * positions * each
        return self.lanes if values >= LANE_VALUES else self.lanes.first


def attend_one(scaled: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """Attention of one query a row, (rows, heads, 1, dim): all heads of a K/V head at once.

    keys, values: (rows, kv heads, positions, dim), seen where ``mask``, (rows, 1, 1, positions).
    """
    rows, num_heads, _, dim = scaled.shape
    kv_heads = keys.shape[1]
    scores = scaled.reshape(rows, kv_heads, num_heads // kv_heads, dim) @ keys.swapaxes(-1, -2)
    weights = mx.softmax(mx.where(mask, scores, HIDDEN), axis=-1)
    return (weights @ values).reshape(rows, num_heads, 1, -1)
