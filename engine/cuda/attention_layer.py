"""An attention layer whose short windows run by one kernel, K/V write included."""

import mlx.core as mx

from ..attention.index import BatchIndex
from ..attention.layer import (
    AttentionLayer,
    DraftChain,
    RunChain,
    RunStep,
    RunWindow,
    TakeIn,
)
from ..attention.paged import InPages, PagedCache
from ..batch import Batch
from ..pages import PageShape
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
from .device import on_device
from .paged_kernel import num_tiles
from .shared_rows import SharedRows
from .window import WindowArrays, window_arrays

UNLIMITED = 1 << 30  # positions added to it must not overflow
COUNTERS = 1 << 14  # to begin with: 256 rows of 64 query heads


class CudaAttentionLayer(AttentionLayer):
    """K/V in pages that kernels write."""

    def __init__(
        self,
        shape: PageShape,
        num_blocks: int,
        block_size: int,
        *,
        window_size: int | None = None,
        rotary_shift: int = 0,
    ) -> None:
        super().__init__(
            shape, num_blocks, block_size, window_size=window_size, rotary_shift=rotary_shift
        )
        self.kind = "paged attention by CUDA kernels"
        self.cause = prompt_attention.why_not(shape.dtype, shape.key_dim)
        if self.cause is not None:
            self.kind += ", prompts gathered by span"
        self.shares = window_size is None and self.cause is None
        if window_size is not None:
            self.kind += f", window of {window_size}"
        self.limits = on_device(mx.array([window_size or UNLIMITED, rotary_shift], mx.int32))
        self._scales: dict[float, mx.array] = {}
        self._constants: dict[
            tuple[int, float], tuple[paged_attention.HeadPreparation, mx.array]
        ] = {}
        self._counters = mx.zeros((COUNTERS,), mx.int32)
        mx.eval(self.limits, self._counters)

    def open(self, view: BatchView) -> "CudaPagedCache":
        return CudaPagedCache(self, view.batch.width, view=view)

    def open_chain(self, batch: Batch, further: mx.array | None = None) -> DraftChain | None:
        from .draft_chain import CudaDraftChain

        return CudaDraftChain(self, batch, further)

    def compile_step(self, run: RunStep) -> RunStep:
        from .draft_chain import compile_step

        return compile_step(self, run)

    def compile_window(self, run: RunWindow) -> TakeIn:
        from .compiled_window import CompiledWindow

        return CompiledWindow(self, run)

    def compile_chain(self, run: RunStep) -> RunChain:
        from .compiled_chain import CompiledChain

        return CompiledChain(self, run)

    def pending(self, cache: PagedCache) -> list[mx.array]:
        assert isinstance(cache, CudaPagedCache)
        return cache.done

    def copy_block(self, source: int, target: int) -> list[mx.array]:
        heads = [head * self.pages.num_blocks for head in range(self.pages.shape.num_kv_heads)]
        sources, targets = [head + source for head in heads], [head + target for head in heads]
        return [
            page_writes.copy_pieces(pool, self.pages.block_size * pool.shape[-1], sources, targets)
            for pool in self.pages.arrays
        ]

    def scale(self, value: float) -> mx.array:
        """Return ``value`` as an array that is made once."""
        if value not in self._scales:
            self._scales[value] = on_device(mx.array([value], mx.float32))
            mx.eval(self._scales[value])  # or each step would make it anew
        return self._scales[value]

    def constants(self, preparation: paged_attention.HeadPreparation, scale: float) -> mx.array:
        """Return ``paged_attention.constants_of`` these and this layer, made once."""
        key = (id(preparation), scale)
        if key not in self._constants:
            packed = paged_attention.constants_of(preparation, self.limits, self.scale(scale))
            mx.eval(packed)
            self._constants[key] = preparation, packed  # or its id might come to be another's
        return self._constants[key][1]

    def counters(self, count: int) -> mx.array:
        """At least ``count`` zeros, which every launch leaves as zeros."""
        if self._counters.size < count:
            self._counters = mx.zeros((2 * count,), mx.int32)
            mx.eval(self._counters)
        return self._counters


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
        layer: CudaAttentionLayer,
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
        if self.shared is not None:
            sums = shared_prefix.attend_projected(
                self.pages,
                self.window,
                self.shared,
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
