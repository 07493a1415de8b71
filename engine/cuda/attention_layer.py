"""An attention layer whose short windows run by one kernel, K/V write included."""

import mlx.core as mx

from ..attention.layer import (
    AttentionLayer,
    DraftChain,
    RunChain,
    RunStep,
    RunWindow,
    TakeIn,
)
from ..attention.paged import PagedCache
from ..batch import Batch
from ..pages import PageShape
from ..view import BatchView
from . import page_writes, paged_attention, prompt_attention
from .device import on_device
from .paged_cache import CudaPagedCache

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

    def open(self, view: BatchView) -> CudaPagedCache:
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
