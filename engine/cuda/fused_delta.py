"""A gated-delta module in three launches: projections with the norm before, the window, output."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next

from . import delta_columns, fusing, product


@dataclass(frozen=True, slots=True, eq=False)
class FusedDelta:
    """How a module's heads lie in its projections, side by side."""

    module: Any
    projections: tuple[Any, ...]
    columns: mx.array

    @classmethod
    def of(cls, module: Any) -> "FusedDelta | str":
        """Read it off ``module``; or say why the kernels cannot stand in for it."""
        heads = (module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim)
        if isinstance(module, qwen3_5.GatedDeltaNet):
            columns = delta_columns.side_by_side(*heads)
            projections: tuple[Any, ...] = tuple(
                getattr(module, f"in_proj_{name}") for name in ("qkv", "z", "b", "a")
            )
        elif isinstance(module, qwen3_next.Qwen3NextGatedDeltaNet):
            columns = delta_columns.interleaved(*heads)
            projections = (module.in_proj_qkvz, module.in_proj_ba)
        else:
            return f"a gated-delta layer of kind {type(module).__name__}"
        cause = fusing.why_not([*projections, module.out_proj])
        return cls(module, projections, columns) if cause is None else cause

    def run(self, x: mx.array, norm: product.Norm, cache: Any) -> mx.array:
        """Return x plus what the module makes of its norm, (rows, width, hidden)."""
        weights = [one.weight for one in self.projections]
        projected = product.multiply(x, weights, norm=norm)
        read = cache.run_projected(projected, self.columns)
        flat = read.reshape(*x.shape[:2], -1)
        return product.multiply(flat, self.module.out_proj.weight, residual=x)
