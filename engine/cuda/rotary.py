"""What a rotary embedding turns by, as numbers a kernel can take."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, YarnRoPE

from .device import on_device


def inverse_frequencies(rope: Any) -> mx.array | None:
    """Return the angle a position, (dims / 2,) float32, of each pair (i, i + dims / 2).

    None for an embedding that is more than that: one that scales its inputs, depends on the length
    of the text, or pairs neighbours.
    """
    if getattr(rope, "traditional", True):
        return None
    if type(rope) is nn.RoPE:
        exponents = -np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims
        return _kept(mx.array((rope.scale * rope.base**exponents).astype(np.float32)))
    if isinstance(rope, YarnRoPE) and rope.mscale != 1.0:
        return None
    if isinstance(rope, (YarnRoPE, Llama3RoPE, ProportionalRoPE)):
        return _kept(1 / rope._freqs)
    return None


def _kept(frequencies: mx.array) -> mx.array:
    """The same numbers where kernels read them quickly."""
    kept = on_device(frequencies)[: frequencies.size]
    mx.eval(kept)
    return kept
