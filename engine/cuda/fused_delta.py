"""A gated-delta module in three launches: projections with the norm before, the window, output."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3_5, qwen3_next

from . import delta_columns, fusing, long_windows, product


@dataclass(frozen=True, slots=True, eq=False)
class FusedDelta:
    """How a module's heads lie in its projections, side by side."""

    module: Any
    projections: tuple[Any, ...]
    joined: mx.array | None  # weights of the last projections, too narrow to stand alone
    columns: mx.array
    gates: mx.array | None = None  # weights of b and a, where they are products of their own

    @classmethod
    def of(cls, module: Any) -> "FusedDelta | str":
        """Read it off ``module``; or say why the kernels cannot stand in for it."""
        heads = (module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim)
        projections: tuple[Any, ...]
        narrow: tuple[Any, ...] = ()
        if isinstance(module, qwen3_5.GatedDeltaNet):
            columns = delta_columns.side_by_side(*heads)
            projections, narrow = (
                (module.in_proj_qkv, module.in_proj_z),
                (
                    module.in_proj_b,
                    module.in_proj_a,
                ),
            )
        elif isinstance(module, qwen3_next.Qwen3NextGatedDeltaNet):
            columns = delta_columns.interleaved(*heads)
            projections = (module.in_proj_qkvz, module.in_proj_ba)
        else:
            return f"a gated-delta layer of kind {type(module).__name__}"
        joined = None
        if fusing.why_not(narrow) is None:
            projections += narrow
        elif all(isinstance(one, nn.Linear) and "bias" not in one for one in narrow):
            joined = mx.concatenate([one.weight for one in narrow])
            if not product.takes(joined):
                return f"{joined.shape[0]} columns of gates"
        cause = fusing.why_not([*projections, module.out_proj])
        if cause is not None:
            return cause
        gates = joined
        if narrow and gates is None:
            gates = mx.concatenate([one.weight for one in narrow])
        return cls(module, projections, joined, columns, gates)

    @property
    def weights(self) -> list[mx.array]:
        """What the norm of x is multiplied by, side by side, for ``mix``."""
        weights = [one.weight for one in self.projections]
        return weights if self.joined is None else [*weights, self.joined]

    @property
    def out_weight(self) -> mx.array:
        """What the mixed heads are multiplied by, (hidden, numbers of all heads)."""
        weight: mx.array = self.module.out_proj.weight
        return weight

    def mix(self, projected: mx.array, cache: Any) -> mx.array:
        """Return the normed and gated heads, (rows, width, numbers of all heads)."""
        read: mx.array = cache.run_projected(projected, self.columns)
        return read

    def run(self, x: mx.array, norm: product.Norm, cache: Any) -> mx.array:
        """Return x plus what the module makes of its norm, (rows, width, hidden)."""
        projected = fusing.multiply(x, self.weights, norm=norm)
        return fusing.multiply(self.mix(projected, cache), self.out_weight, residual=x)

    def run_long(self, x: mx.array, norm: nn.RMSNorm, cache: Any) -> mx.array:
        """Do the same over many rows."""
        module = self.module
        normed = norm(x)
        if self.gates is None:
            out: mx.array = x + module(normed, None, cache)
            return out
        b, a = mx.split(normed @ self.gates.T, 2, axis=-1)
        z = module.in_proj_z(normed)
        z = z.reshape(*x.shape[:2], module.num_v_heads, module.head_v_dim)
        read = cache.run(module, module.in_proj_qkv(normed), z, b, a)
        return long_windows.add_product(x, read.reshape(*x.shape[:2], -1), module.out_proj)
