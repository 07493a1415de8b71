"""Layers by kernels where they take the shape; the portable ones elsewhere, layer by layer."""

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..attention.layer import AttentionLayer
from ..backend import Backend
from ..forward import RunBody
from ..layers import Layer
from ..pages import PageShape
from ..recurrence.forms import RecurrenceForm
from ..slots import SlotArray
from . import exact_products, fused_block, fused_head, paged_attention, product
from .attention_layer import CudaAttentionLayer
from .compiled_body import CompiledBody
from .delta import DeltaShape
from .delta_layer import CudaDeltaLayer

logger = logging.getLogger("octavo")

EXACT_WIDTH = 8  # tokens of a window that decoding's kernels take, drafts included


class CudaBackend(Backend):
    """Kernels of our own for an NVIDIA GPU."""

    name = "cuda"
    exact_dtype = mx.bfloat16
    reads_groups_once = True

    def __init__(self, *, exact: bool = False) -> None:
        """``exact``: rows come out the same, bitwise, whatever the batch and the chunks.

        All that a model multiplies then goes through kernels whose sums have one order, and prompts
        run as the short windows that decoding runs as.
        """
        self.exact = exact
        self.widest = EXACT_WIDTH if exact else None

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
        cause = paged_attention.why_not(shape.dtype, shape.key_dim, shape.value_dim, block_size)
        if gathers:
            cause = "attention that looks into its keys and values"
        if cause is None:
            return CudaAttentionLayer(
                shape,
                num_blocks,
                block_size,
                window_size=window_size,
                rotary_shift=rotary_shift,
            )
        logger.info("no CUDA kernel for %s: this attention layer runs portable", cause)
        return super().attention_layer(
            shape,
            num_blocks,
            block_size,
            window_size=window_size,
            gathers=gathers,
            rotary_shift=rotary_shift,
        )

    def runs_in_order(self, layers: Sequence[Layer]) -> bool:
        return all(isinstance(layer, CudaAttentionLayer | CudaDeltaLayer) for layer in layers)

    def bind_products(self, model: Any) -> int:
        bound = exact_products.bind(model) if self.exact else product.bind(model)
        if not self.exact:
            bound += fused_head.bind(model)
        return bound + fused_block.bind(model, any_rows=self.exact)

    def why_not_exact(self, model: Any) -> str | None:
        return fused_block.why_not_whole(model)

    def compile_body(self, run: RunBody, layers: Sequence[Layer]) -> RunBody:
        return CompiledBody(run, layers)

    def delta_layout(self, module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
        shape = DeltaShape.of(module, max_drafts, dtype)
        if shape.why_not() is None:
            return shape.layout()
        return super().delta_layout(module, max_drafts, dtype)

    def delta_layer(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, form: RecurrenceForm
    ) -> Layer:
        shape = DeltaShape.of(module, max_drafts, dtype)
        cause = shape.why_not()
        if cause is None:
            return CudaDeltaLayer(module, shape, num_slots)
        logger.info("no CUDA kernel for %s: this gated-delta layer runs portable", cause)
        return super().delta_layer(module, num_slots, max_drafts, dtype, form)
