"""Feed-forward layers whose channels are divided among the lanes, activation and all."""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2, qwen3, qwen3_next

from ..quick_classes import exchange
from .activation import swiglu
from .divided_panels import join
from .products import SkinnyLinear
from .skinny_weight import SkinnyWeight


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)); parameters are those of mlx-lm's module."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return the layer's output, shaped like ``x``."""
        gate, up = self.gate_proj, self.up_proj
        rows = x.size // x.shape[-1]
        if _divides(gate, rows) and _divides(up, rows):
            flat = x.reshape(rows, x.shape[-1])
            hidden = []
            for one, other in zip(gate.skinny.parts(flat), up.skinny.parts(flat), strict=True):
                with mx.stream(one[0]):
                    hidden.append((one[0], swiglu(one[1], other[1])))
            down_proj = self.down_proj
            if gate.skinny.fits_panels(rows) and _is_cut(down_proj, rows):
                return _sum_of(down_proj.skinny, hidden).reshape(x.shape)
            joined = join([part for _, part in hidden]).reshape(*x.shape[:-1], -1)
            down: mx.array = down_proj(joined)
            return down
        out: mx.array = self.down_proj(swiglu(gate(x), up(x)))
        return out


def _sum_of(down: SkinnyWeight, hidden: list[tuple[mx.Stream, mx.array]]) -> mx.array:
    """``down`` of channels (tiles, rows, tile) that are still on their lanes: (rows, outputs)."""
    parts = []
    for stream, part in hidden:
        with mx.stream(stream):
            parts.append((stream, part.swapaxes(0, 1).reshape(part.shape[1], -1)))
    return down.sum_of(parts)


def _is_cut(linear: nn.Linear, rows: int) -> bool:
    return isinstance(linear, SkinnyLinear) and linear.skinny.is_cut(rows)


def _divides(linear: nn.Linear, rows: int) -> bool:
    is_bare = isinstance(linear, SkinnyLinear) and "bias" not in linear
    return is_bare and linear.skinny.is_divided(rows)


FAMILIES = (llama.MLP, qwen2.MLP, qwen3.MLP, qwen3_next.Qwen3NextMLP)  # all compute just this
QUICK: dict[type[Any], type[Any]] = {
    family: type(f"Quick{family.__name__}", (FeedForward, family), {}) for family in FAMILIES
}


def quicken(model: Any) -> int:
    """Give the feed-forward layers of ``model`` the quicker class; return how many."""
    return len(exchange(model, QUICK))


def leave_on_lanes(model: Any) -> None:
    """Let each lane go on with its own channels, from gate to down, where there are panels."""
    for module in model.modules():
        if type(module) in QUICK.values():
            layers = (module.gate_proj, module.up_proj, module.down_proj)
            if all(isinstance(layer, SkinnyLinear) and "bias" not in layer for layer in layers):
                module.down_proj.skinny.cut_inputs_like_outputs(module.gate_proj.skinny)
