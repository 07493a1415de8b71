"""One attention layer's share of a batch: heads prepared, written into pages, attended to."""

from typing import TYPE_CHECKING

import mlx.core as mx

from ..attention.index import BatchIndex
from ..attention.paged import InPages, PagedCache
from ..spans import Span
from ..view import BatchView
from . import (
    long_windows,
    page_writes,
    paged_attention,
    prompt_attention,
    shared_prefix,
)
from .chains import ChainRun
from .paged_kernel import num_tiles
from .shared_rows import SharedRows
from .window import WindowArrays, window_arrays

if TYPE_CHECKING:
    from .attention_layer import CudaAttentionLayer


def shared_rows(view: BatchView) -> SharedRows | None:
    """What rows of ``view`` share, made once for all layers."""
    if SharedRows not in view.shared:
        view.shared[SharedRows] = SharedRows.of(view.batch)
    shared: SharedRows | None = view.shared[SharedRows]
    return shared


class TracedIndex(BatchIndex):
    """Stands for the index of a window of which only device arrays are known."""

    def __init__(self, window: WindowArrays) -> None:
        self._window = window

    def offset(self, shift: int) -> mx.array:
        return self._window.starts - shift


class CudaPagedCache(PagedCache):
    """One attention layer's share of a batch, or of a window that is traced: without a view."""

    def __init__(
        self,
        layer: "CudaAttentionLayer",
        width: int,
        window: WindowArrays | None = None,
        shared: SharedRows | None = None,
        *,
        view: BatchView | None = None,
    ) -> None:
        index: BatchIndex
        if view is not None:
            index = view.index
        else:
            assert window is not None
            index = TracedIndex(window)
        super().__init__(
            layer.pages,
            index,
            window_size=layer.window_size,
            rotary_shift=layer.rotary_shift,
        )
        self.layer = layer
        self.view = view
        self._window = window
        self._shared = shared
        self.width = width
        self.done: list[mx.array] = []  # to evaluate, for the pages to hold the window
        self.chain: ChainRun | None = None  # of a traced window whose blocks multiply in chains
        self._new: tuple[mx.array, mx.array] | None = None
        self._written: mx.array | None = None

    @property
    def window(self) -> WindowArrays:
        """The window's arrays: made when they are asked for, a compiled body has its own."""
        if self._window is None:
            assert self.view is not None
            self._window = window_arrays(self.view)
        return self._window

    @property
    def shared(self) -> SharedRows | None:
        """What rows share, if this layer may read it once."""
        if not self.layer.shares:
            return None
        if self._shared is None and self.view is not None:
            return shared_rows(self.view)
        return self._shared

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[InPages, InPages]:
        """Take the windows' K/V, (rows, heads, width, dim), for ``attend`` to write."""
        self._new = (keys, values)
        return InPages(self), InPages(self)

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Attention of ``queries``, (rows, heads, width, dim), over their rows' pages."""
        assert self._new is not None
        keys, values = self._new
        dtype = self.pages.shape.dtype
        is_plain = sinks is None and queries.dtype == keys.dtype == values.dtype == dtype
        if not (is_plain and self.takes_projected):
            keys, values = keys.astype(dtype), values.astype(dtype)
            self._written = page_writes.write(self.pages, self.window, keys, values)
            self.done = [self._written]
            if not is_plain or self.layer.cause is not None:
                return super().attend(queries, scale, sinks)
            return prompt_attention.attend_prompt(
                self.pages,
                self.window,
                queries,
                self._written,
                limits=self.layer.limits,
                scale=self.layer.scale(scale),
            )
        constants = {"limits": self.layer.limits, "scale": self.layer.scale(scale)}
        sums = None
        shared = self.shared
        if shared is not None:
            sums = shared_prefix.attend(self.pages, self.window, shared, queries, **constants)
        out = paged_attention.attend(
            self.pages,
            self.window,
            queries=queries,
            keys=keys,
            values=values,
            counters=self.layer.counters(self.num_counters(queries.shape[1])),
            shared=sums,
            **constants,
        )
        self.done = [out]
        return out

    @property
    def takes_projected(self) -> bool:
        """Whether the kernel for short windows takes this one, and so ``attend_projected``."""
        return self.width <= paged_attention.MAX_WIDTH

    def attend_projected(
        self,
        projected: mx.array,
        projection: paged_attention.Projection,
        preparation: paged_attention.HeadPreparation,
        scale: float,
    ) -> mx.array:
        """Prepare the heads in ``projected``, write, attend: (rows, width, query heads * dim)."""
        constants = self.layer.constants(preparation, scale)
        sums = None
        shared = self.shared
        if shared is not None and shared_prefix.takes(preparation):
            sums = shared_prefix.attend_projected(
                self.pages,
                self.window,
                shared,
                projected=projected,
                projection=projection,
                preparation=preparation,
                constants=constants,
            )
        out = paged_attention.attend_projected(
            self.pages,
            self.window,
            projected,
            projection,
            preparation,
            counters=self.layer.counters(self.num_counters(projection.num_heads)),
            constants=constants,
            shared=sums,
        )
        self.done = [out]
        return out

    @property
    def takes_heads(self) -> bool:
        """Whether ``attend_heads`` takes this window."""
        return not self.takes_projected and self.layer.cause is None

    def attend_heads(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        preparation: paged_attention.HeadPreparation,
        scale: float,
    ) -> mx.array:
        """Prepare heads as projections leave them, (rows, width, heads, dim), write and attend.

        Returns (rows, width, query heads, dim).
        """
        prepared, self._written = long_windows.prepare_heads(
            self.pages,
            self.window,
            preparation,
            queries=queries,
            keys=keys,
            values=values,
            limits=self.layer.limits,
        )
        self.done = [self._written]
        out = prompt_attention.attend_prompt(
            self.pages,
            self.window,
            prepared.transpose(0, 2, 1, 3),
            self._written,
            limits=self.layer.limits,
            scale=self.layer.scale(scale),
        )
        return out.transpose(0, 2, 1, 3)

    def num_counters(self, num_heads: int) -> int:
        """How many counters a launch for ``num_heads`` query heads needs."""
        num_kv_heads = self.pages.shape.num_kv_heads
        tiles = num_tiles(num_heads // num_kv_heads, self.width)
        return self.window.num_rows * tiles * num_kv_heads

    def numbers(self, span: Span) -> mx.array:
        """Flat block numbers to gather, which exist only once the window is written."""
        numbers = super().numbers(span)
        return numbers if self._written is None else numbers + self._written
