"""Forms of the gated delta rule in plain MLX operations.

    S[t] = g[t] S[t-1] + beta[t] (v[t] - g[t] S[t-1] k[t]) k[t]^T        y[t] = S[t] q[t]

(Yang et al., "Gated Delta Networks", 2024, with the layouts of mlx_lm.models.gated_delta.) Inputs
are q and k (rows, time, key heads, Dk), v (rows, time, value heads, Dv), decay g and beta (rows,
time, value heads); the state is (rows, value heads, Dv, Dk) in float32. ``valid`` (rows, time)
marks tokens that count: the others leave the state as it was.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel, gated_delta_ops


def by_loop(
    inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
) -> tuple[mx.array, mx.array]:
    """mlx-lm's own operations, token by token: the form that exact mode is defined by."""
    q, k, v, g, beta = inputs
    outputs: tuple[mx.array, mx.array] = gated_delta_ops(q, k, v, g, beta, state, valid)
    return outputs


def by_metal_kernel(
    inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
) -> tuple[mx.array, mx.array]:
    """mlx-lm's Metal kernel; for Apple GPUs and Dk a multiple of 32."""
    q, k, v, g, beta = inputs
    outputs: tuple[mx.array, mx.array] = gated_delta_kernel(q, k, v, g, beta, state, valid)
    return outputs


def by_products(
    inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Token by token, but with the state read by one product S [k q] a token.

    y = S[t] q follows from g S[t-1] q + (beta (v - g S[t-1] k)) (k . q), so the new state need not
    be read again: about 2.4 times faster than the loop on a CPU, equal up to rounding.
    """
    q, k, v, g, beta = inputs
    repeats = v.shape[2] // k.shape[2]
    if repeats > 1:
        q, k = mx.repeat(q, repeats, axis=2), mx.repeat(k, repeats, axis=2)
    outputs = []
    for time in range(k.shape[1]):
        qt, kt, vt, gt, bt = q[:, time], k[:, time], v[:, time], g[:, time], beta[:, time]
        if valid is not None:  # decay 1 and beta 0 leave the state as it was
            counts = valid[:, time, None]
            gt, bt = mx.where(counts, gt, 1.0), mx.where(counts, bt, 0.0)
        read = state @ mx.stack([kt, qt], axis=-1)
        delta = (vt - gt[..., None] * read[..., 0]) * bt[..., None]
        outputs.append(gt[..., None] * read[..., 1] + delta * (kt * qt).sum(-1, keepdims=True))
        state = state * gt[..., None, None] + delta[..., None] * kt[..., None, :]
    return mx.stack(outputs, axis=1).astype(v.dtype), state
