"""A gated feed-forward module in two launches: norm, gate, up and their product; then down."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen3, qwen3_next

from . import fusing, long_windows, product

KINDS = (qwen3.MLP, qwen3_next.Qwen3NextMLP, llama.MLP)  # silu(gate) * up


@dataclass(frozen=True, slots=True, eq=False)
class FusedFeedForward:
    """A feed-forward module whose products the kernel takes."""

    module: Any

    @classmethod
    def of(cls, module: Any) -> "FusedFeedForward | str":
        """Take ``module``; or say why the kernels cannot stand in for it."""
        if not isinstance(module, KINDS):
            return f"a feed-forward layer of kind {type(module).__name__}"
        linear = [module.gate_proj, module.up_proj, module.down_proj]
        cause = fusing.why_not(linear)
        return cls(module) if cause is None else cause

    def run(self, x: mx.array, norm: product.Norm) -> mx.array:
        """Return x plus the feed-forward layer of its norm, (rows, width, hidden)."""
        module = self.module
        weights = [module.gate_proj.weight, module.up_proj.weight]
        active = fusing.multiply(x, weights, norm=norm, swiglu=True)
        return fusing.multiply(active, module.down_proj.weight, residual=x)

    def run_long(self, x: mx.array, norm: nn.RMSNorm) -> mx.array:
        """Do the same over many rows."""
        module = self.module
        normed = norm(x)
        active = long_windows.swiglu(module.gate_proj(normed), module.up_proj(normed))
        return long_windows.add_product(x, active, module.down_proj)
