"""The gated delta rule over whole chunks of tokens: a few matrix products instead of a loop.

Within a chunk of C tokens, with G[i] the sum of log decays up to token i and S the state before it,
the corrections d[i] = beta[i] (v[i] - prediction) solve a triangular system:

    (I + A) d = beta (v - exp(G) k S),  A[i, j] = beta[i] (k[i] . k[j]) exp(G[i] - G[j]) for j < i
    y[i]      = exp(G[i]) q[i] S + sum over j <= i of (q[i] . k[j]) exp(G[i] - G[j]) d[j]
    S after   = exp(G[C]) S + sum over j of exp(G[C] - G[j]) k[j] d[j]^T

(Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024, with decay.) A is
strictly lower triangular, so (I + A)^-1 is a finite product of (I + (-A)^(2^n)). Chunks lie on a
grid from the window's start; those of prompts start on block boundaries: the grid is absolute.
"""

from collections.abc import Sequence

import mlx.core as mx

from .triangle import inverse, masks

CHUNK = 16  # tokens; as fast as 32 on a CPU, and it divides the usual block

LEAST_DECAY = 1e-30  # a smaller one forgets the state as thoroughly


def by_chunks(
    inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Run the rule in chunks; contract of ``delta_rule``, equal to its loop up to rounding."""
    q, k, v, g, beta = inputs
    time, dtype = k.shape[1], v.dtype
    repeats = v.shape[2] // k.shape[2]
    if repeats > 1:
        q, k = mx.repeat(q, repeats, axis=2), mx.repeat(k, repeats, axis=2)
    log_decay = mx.log(mx.maximum(g.astype(mx.float32), LEAST_DECAY))
    beta = beta.astype(mx.float32)
    if valid is not None:  # decay 1 and beta 0 leave the state as it was
        log_decay = mx.where(valid[..., None], log_decay, 0.0)
        beta = mx.where(valid[..., None], beta, 0.0)
    q, k, v = _chunks(q), _chunks(k), _chunks(v)
    total = mx.cumsum(_chunks(log_decay[..., None])[..., 0], axis=-1)
    beta = _chunks(beta[..., None])
    return _run(q, k, v, beta, total, state, time, dtype)


def _run(  # noqa: PLR0917  # the letters of the formula
    q: mx.array,
    k: mx.array,
    v: mx.array,
    beta: mx.array,
    total: mx.array,
    state: mx.array,
    time: int,
    dtype: mx.Dtype,
) -> tuple[mx.array, mx.array]:
    lower, strictly = masks(CHUNK)
    kept = total[..., :, None] - total[..., None, :]  # log of what is left of j's write at i
    kept = mx.where(lower, mx.exp(mx.where(lower, kept, 0.0)), 0.0)
    turned = k.swapaxes(-1, -2)
    solved = inverse(mx.where(strictly, (beta * k) @ turned * kept, 0.0))
    decayed = mx.exp(total)[..., None]
    wanted, predicted = solved @ (beta * v), solved @ (beta * decayed * k)
    reads, decayed_q = q @ turned * kept, decayed * q
    to_end = mx.exp(total[..., -1:] - total)[..., None]
    writes, at_end = (to_end * k).swapaxes(-1, -2), mx.exp(total[..., -1])[..., None, None]
    memory = state.swapaxes(-1, -2)  # (rows, heads, Dk, Dv)
    outputs = []
    for index in range(total.shape[2]):
        corrections = wanted[:, :, index] - predicted[:, :, index] @ memory
        outputs.append(decayed_q[:, :, index] @ memory + reads[:, :, index] @ corrections)
        memory = at_end[:, :, index] * memory + writes[:, :, index] @ corrections
    joined = mx.stack(outputs, axis=2)  # (rows, heads, chunks, C, Dv)
    rows, heads, count, size, width = joined.shape
    joined = joined.transpose(0, 2, 3, 1, 4).reshape(rows, count * size, heads, width)
    return joined[:, :time].astype(dtype), memory.swapaxes(-1, -2)


def _chunks(x: mx.array) -> mx.array:
    """(rows, time, heads, size) -> float32 (rows, heads, chunks, C, size), padded with zeros."""
    rows, time, heads, size = x.shape
    padding = -time % CHUNK
    x = mx.pad(x.astype(mx.float32), [(0, 0), (0, padding), (0, 0), (0, 0)])
    return x.reshape(rows, -1, CHUNK, heads, size).transpose(0, 3, 1, 2, 4)
