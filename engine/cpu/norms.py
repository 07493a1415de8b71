"""RMS norms in few passes, for float32 on a CPU.

    x rsqrt(mean(x^2) + eps) weight

MLX's own is fifteen operations there. Up to rounding these say the same.
"""

from functools import partial
from math import e
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.qwen3_next import Qwen3NextRMSNormGated

from ..quick_classes import exchange


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Return x (..., size) normed over its last axis, times ``weight``, which broadcasts."""
    if x.dtype != mx.float32 or weight.dtype != mx.float32:
        plain: mx.array = mx.fast.rms_norm(x, weight, eps)
        return plain
    normed: mx.array = _times(x, inverse_rms(x, eps), weight)
    return normed


def inverse_rms(x: mx.array, eps: float, scale: float = 1.0) -> mx.array:
    """Return scale / sqrt(mean(x^2) + eps) for x (..., size); (..., 1)."""
    inverse: mx.array = _inverse(
        mx.square(x).sum(axis=-1, keepdims=True), 1 / x.shape[-1] / scale**2, eps / scale**2
    )
    return inverse


@partial(mx.compile, shapeless=True)
def _inverse(squares: mx.array, part: float, eps: float) -> mx.array:
    return mx.rsqrt(squares * part + eps)


@partial(mx.compile, shapeless=True)
def _times(x: mx.array, inverse: mx.array, weight: mx.array) -> mx.array:
    return x * inverse * weight


@partial(mx.compile, shapeless=True)
def _gated(x: mx.array, inverse: mx.array, weight: mx.array, gate: mx.array) -> mx.array:
    return x * inverse * weight * (gate / (1 + mx.power(e, -gate)))


class QuickRMSNorm(nn.RMSNorm):
    """An RMSNorm in few passes; parameters and results are nn.RMSNorm's."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return ``x`` normed over its last axis."""
        return rms_norm(x, self["weight"], self.eps)


class QuickRMSNormGated(Qwen3NextRMSNormGated):
    """A gated norm likewise; parameters and results are mlx-lm's."""

    def __call__(self, hidden_states: mx.array, gate: mx.array | None = None) -> mx.array:
        """Return ``hidden_states`` normed over its last axis, times silu(gate)."""
        weight = self["weight"]
        if gate is None or any(x.dtype != mx.float32 for x in (hidden_states, gate, weight)):
            plain: mx.array = super().__call__(hidden_states, gate)
            return plain
        inverse = inverse_rms(hidden_states, self.eps)
        normed: mx.array = _gated(hidden_states, inverse, weight, gate)
        return normed


QUICK: dict[type[Any], type[Any]] = {
    nn.RMSNorm: QuickRMSNorm,
    Qwen3NextRMSNormGated: QuickRMSNormGated,
}


def quicken(model: Any) -> int:
    """Give the norms of ``model`` the quicker class; return how many."""
    return len(exchange(model, QUICK))
