"""SiLU out of powers of e, for float32 on a CPU.

MLX's CPU build takes 12 to 20 ns for one exponential or sigmoid where it has no vector library, and
a third of that for a power. Compiled, the whole activation is one pass.
"""

from functools import partial
from math import e

import mlx.core as mx
from mlx import nn


def silu(x: mx.array) -> mx.array:
    """x sigmoid(x), to 2e-6 relative in float32; other types as MLX has it."""
    result: mx.array = nn.silu(x) if x.dtype != mx.float32 else _silu(x)
    return result


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, to 2e-6 relative in float32; other types as MLX has it."""
    if gate.dtype != mx.float32:
        plain: mx.array = nn.silu(gate) * x
        return plain
    result: mx.array = _swiglu(gate, x)
    return result


@partial(mx.compile, shapeless=True)
def _silu(x: mx.array) -> mx.array:
    return x / (1 + mx.power(e, -x))


@partial(mx.compile, shapeless=True)
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return x * (gate / (1 + mx.power(e, -gate)))
