"""An attention module in three launches: projections with the norm before, attention, output.

norm -> q | k | v (| gate) ; head norms, rotary, write, attend, gate ; output + residual
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen3, qwen3_moe, qwen3_next

from . import fusing, long_windows, product
from .device import on_device
from .paged_attention import HeadPreparation, Projection
from .rotary import inverse_frequencies

GATED = (qwen3_next.Qwen3NextAttention,)  # Qwen3.5's too: each head's gate follows its query
PLAIN = (qwen3.Attention, qwen3_moe.Attention, llama.Attention)


@dataclass(frozen=True, slots=True, eq=False)
class FusedAttention:
    """How a module's heads lie in its projections, and what is done to them."""

    module: Any
    projection: Projection
    preparation: HeadPreparation

    @classmethod
    def of(cls, module: Any) -> "FusedAttention | str":
        """Read it off ``module``; or say why the kernels cannot stand in for it."""
        if not isinstance(module, (*GATED, *PLAIN)):
            return f"attention of kind {type(module).__name__}"
        linear = [getattr(module, f"{name}_proj") for name in ("q", "k", "v", "o")]
        cause = fusing.why_not(linear)
        if cause is not None:
            return cause
        frequencies = inverse_frequencies(module.rope)
        if frequencies is None:
            return f"a rotary embedding of kind {type(module.rope).__name__}"
        gated = isinstance(module, GATED)
        head_dim = round(module.scale**-2)
        num_kv_heads = linear[1].weight.shape[0] // head_dim
        num_heads = linear[3].weight.shape[1] // head_dim
        queries = linear[0].weight.shape[0]
        if queries != num_heads * head_dim * (1 + gated):
            return f"{queries} numbers of {num_heads} queries of {head_dim}"
        projection = Projection(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            query_stride=head_dim * (1 + gated),
            query_offset=0,
            key_offset=queries,
            value_offset=queries + num_kv_heads * head_dim,
            gated=gated,
        )
        norms = [module.get("q_norm"), module.get("k_norm")]
        if any(norm is not None and type(norm) is not nn.RMSNorm for norm in norms):
            return f"head norms of kind {type(norms[0]).__name__}"
        epsilon = 0.0 if norms[0] is None else norms[0].eps
        preparation = HeadPreparation(
            q_norm=None if norms[0] is None else norms[0].weight,
            k_norm=None if norms[1] is None else norms[1].weight,
            epsilon=on_device(mx.array([epsilon], mx.float32)),
            frequencies=frequencies,
        )
        return cls(module, projection, preparation)

    @property
    def weights(self) -> list[mx.array]:
        """What the norm of x is multiplied by, side by side, for ``mix``."""
        module = self.module
        return [module.q_proj.weight, module.k_proj.weight, module.v_proj.weight]

    @property
    def out_weight(self) -> mx.array:
        """What the mixed heads are multiplied by, (hidden, numbers of all heads)."""
        weight: mx.array = self.module.o_proj.weight
        return weight

    def mix(self, projected: mx.array, cache: Any) -> mx.array:
        """Return the heads' attention, (rows, width, numbers of all heads)."""
        out: mx.array = cache.attend_projected(
            projected, self.projection, self.preparation, self.module.scale
        )
        return out

    def run(self, x: mx.array, norm: product.Norm, cache: Any) -> mx.array:
        """Return x plus the attention of its norm, (rows, width, hidden)."""
        projected = fusing.multiply(x, self.weights, norm=norm)
        return fusing.multiply(self.mix(projected, cache), self.out_weight, residual=x)

    @property
    def takes_long(self) -> bool:
        """Whether ``run_long`` takes the heads: it turns two pairs at a time."""
        frequencies = self.preparation.frequencies
        return frequencies is None or frequencies.size % 2 == 0

    def run_long(self, x: mx.array, norm: nn.RMSNorm, cache: Any) -> mx.array:
        """Do the same over many rows."""
        module, at = self.module, self.projection
        normed = norm(x)
        heads = (*x.shape[:2], -1, at.head_dim)
        queries = module.q_proj(normed).reshape(*x.shape[:2], at.num_heads, at.query_stride)
        out = cache.attend_heads(
            queries[..., : at.head_dim],
            module.k_proj(normed).reshape(heads),
            module.v_proj(normed).reshape(heads),
            self.preparation,
            module.scale,
        )
        if at.gated:
            out = long_windows.gated(out, queries[..., at.head_dim :])
        return long_windows.add_product(x, out.reshape(*x.shape[:2], -1), module.o_proj)
