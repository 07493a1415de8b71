"""Attention over pages whose rows are divided among the lanes."""

from typing import Any

import mlx.core as mx

from ..attention.layer import AttentionLayer
from ..attention.paged import PagedCache
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
        return LaneCache(
            self.pages,
            view.index,
            window_size=self.window_size,
            gathers=self.gathers,
            rotary_shift=self.rotary_shift,
            tiles=self.tiles,
            lanes=self.lanes,
        )


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
                outputs.append(super()._attend_span(rows, queries, scale, sinks))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)

    def _lanes_for(self, span: Span) -> Lanes:
        shape = self.pages.shape
        positions = (span.num_blocks - span.first_block) * self.pages.block_size
        each = shape.num_kv_heads * (shape.key_dim + shape.value_dim)
        values = (span.last - span.first) * positions * each
        return self.lanes if values >= LANE_VALUES else self.lanes.first
