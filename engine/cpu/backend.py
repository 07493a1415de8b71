"""Layers and products as a CPU runs them fastest; the same numbers up to rounding."""

from typing import Any

import mlx.core as mx

from ..backend import Backend
from ..layers import Layer
from ..recurrence.forms import RecurrenceForm
from ..slots import SlotArray
from . import feed_forward, heap, norms, products
from .deferred_layer import DeferredLayer, deferred_layout
from .lanes import Lanes


class CpuBackend(Backend):
    """Gated-delta layers defer the writing of states; products of few rows take OpenBLAS's way."""

    name = "cpu"
    reads_groups_once = True
    attends_in_tiles = True

    def __init__(self) -> None:
        heap.keep_freed()
        # beside a BLAS that keeps its own threads, lanes would be more threads than cores
        self.lanes = Lanes.of_thread().first

    def bind_products(self, model: Any) -> int:
        norms.quicken(model)
        feed_forward.quicken(model)
        if not products.pays_here():
            return super().bind_products(model)
        if not products.mostly_large(model):
            return products.quicken(model, Lanes.of_thread().first, tiles=False)
        self.lanes = Lanes.of_thread()
        return products.quicken(model, self.lanes, tiles=products.tiles_pay())

    def delta_layout(self, module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
        return deferred_layout(module, max_drafts, dtype)

    def delta_layer(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, form: RecurrenceForm
    ) -> Layer:
        return DeferredLayer(module, num_slots, max_drafts, dtype, self.lanes)
