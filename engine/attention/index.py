"""Where a batch's K/V go, which blocks its rows see, and which positions its queries may see."""

import mlx.core as mx

from ..batch import Batch
from ..pages import Pages
from ..spans import Span


class BatchIndex:
    """Index arrays and masks of one batch, made once and shared by all its layers."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._offsets: dict[int, mx.array] = {}
        self._places: dict[tuple[int, int], mx.array] = {}
        self._numbers: dict[tuple[Span, int, int], mx.array] = {}
        self._masks: dict[tuple[Span, int | None, int], mx.array] = {}

    def offset(self, shift: int) -> mx.array:
        """Rotary position of each row's first token: ``shift`` less than its page position."""
        if shift not in self._offsets:
            self._offsets[shift] = mx.array(self.batch.starts - shift)
        return self._offsets[shift]

    def places(self, pages: Pages) -> mx.array:
        """Where the windows' K/V go in ``pages``; see Batch.places."""
        key = (pages.shape.num_kv_heads, pages.num_blocks)
        if key not in self._places:
            self._places[key] = self.batch.places(*key)
        return self._places[key]

    def numbers(self, span: Span, pages: Pages) -> mx.array:
        """Which blocks of ``pages`` the rows of ``span`` see; see Batch.block_numbers."""
        key = (span, pages.shape.num_kv_heads, pages.num_blocks)
        if key not in self._numbers:
            self._numbers[key] = self.batch.block_numbers(*key)
        return self._numbers[key]

    def mask(self, span: Span, window_size: int | None, first: int) -> mx.array:
        """What each query of ``span`` may see; see Batch.mask."""
        key = (span, window_size, first)
        if key not in self._masks:
            self._masks[key] = self.batch.mask(span, window_size, first)
        return self._masks[key]
