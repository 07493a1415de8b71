"""Layers and products as a CPU runs them fastest; the same numbers up to rounding."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..attention.layer import AttentionLayer
from ..backend import Backend, Waiting
from ..forward import RunBody
from ..layers import Layer
from ..pages import PageShape
from ..recurrence.forms import RecurrenceForm
from ..slots import SlotArray
from . import feed_forward, heap, norms, products, rotary
from .attention import LaneAttention
from .deferred_layer import DeferredLayer, deferred_layout
from .early_start import EarlyStart
from .lanes import Lanes

BAR_OF_SMALL_MODELS = 4  # the other core builds the step meanwhile


class CpuBackend(Backend):
    """Gated-delta layers defer the writing of states; products of few rows take OpenBLAS's way."""

    name = "cpu"
    reads_groups_once = True
    attends_in_tiles = True

    def __init__(self) -> None:
        heap.keep_freed()
        # beside a BLAS that keeps its own threads, lanes would be more threads than cores
        self.lanes = Lanes.of_thread().first
        self.early = EarlyStart()

    def bind_products(self, model: Any) -> int:
        norms.quicken(model)
        rotary.quicken(model)
        feed_forward.quicken(model)
        if not products.pays_here():
            return super().bind_products(model)
        tiles, panels = products.tiles_pay(), products.panels_fit(model)
        if products.mostly_large(model):
            self.lanes = Lanes.of_thread()
            count = products.quicken(model, self.lanes, tiles=tiles, panels=panels)
            feed_forward.leave_on_lanes(model)
            if tiles and panels:
                products.join_siblings(model)
            products.copy_panels(model)
            return count
        if not (tiles and panels):  # OpenBLAS's own threads are quicker than one lane
            return products.quicken(model, Lanes.of_thread().first, tiles=False)
        self.early.bind(getattr(model, "layers", ()))
        lanes = Lanes.of_thread()
        count = products.quicken(model, lanes, tiles=True, panels=True, bar=BAR_OF_SMALL_MODELS)
        products.join_siblings(model)
        products.copy_panels(model)
        return count

    def compile_body(self, run: RunBody, layers: Sequence[Layer]) -> RunBody:
        return self.early.around(run)

    def charge_waiting(self, waiting: Waiting) -> None:
        self.early.waiting = waiting

    def attention_layer(
        self,
        shape: PageShape,
        num_blocks: int,
        block_size: int,
        *,
        window_size: int | None = None,
        gathers: bool = False,
        rotary_shift: int = 0,
    ) -> AttentionLayer:
        return LaneAttention(
            shape,
            num_blocks,
            block_size,
            window_size=window_size,
            gathers=gathers,
            rotary_shift=rotary_shift,
            tiles=self.attends_in_tiles,
            lanes=self.lanes,
        )

    def delta_layout(self, module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
        return deferred_layout(module, max_drafts, dtype)

    def delta_layer(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, form: RecurrenceForm
    ) -> Layer:
        return DeferredLayer(module, num_slots, max_drafts, dtype, self.lanes)
