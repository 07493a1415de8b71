"""Attention over keys that all rows share, read once, and keys that each row has of its own.

The scores of all rows on what they share are one matrix product. Both parts' weights are taken
relative to one maximum and divided by one sum: the merge of two attentions by log-sum-exp.
"""

import mlx.core as mx

from .exponential import exp

KeysValues = tuple[mx.array, mx.array]


def attend_two_parts(
    queries: mx.array, shared: KeysValues, own: KeysValues, *, scale: float, mask: mx.array
) -> mx.array:
    """Return the attention of ``queries``, (rows, heads, width, dim), over both parts.

    shared: (kv heads, positions, dim), seen by every query; own: (rows, kv heads, positions, dim),
    seen where ``mask``, (rows, 1, width, positions), says so. Scores, weights and sums are float32.
    """
    rows, num_heads, width, dim = queries.shape
    shared_keys, shared_values = (x.astype(mx.float32) for x in shared)
    own_keys, own_values = (x.astype(mx.float32) for x in own)
    kv_heads = shared_keys.shape[0]
    each = num_heads // kv_heads * width  # queries of a row that look into one K/V head
    scaled = (queries.astype(mx.float32) * scale).reshape(rows, kv_heads, each, dim)

    on_shared = _heads_first(scaled) @ shared_keys.swapaxes(-1, -2)
    on_own = scaled @ own_keys.swapaxes(-1, -2)
    seen = mx.broadcast_to(mask, (rows, num_heads, *mask.shape[2:])).reshape(on_own.shape)
    on_own = mx.where(seen, on_own, -mx.inf)
    most = mx.maximum(
        _rows_first(on_shared.max(axis=-1, keepdims=True), rows),
        on_own.max(axis=-1, keepdims=True),
    )
    shared_weights = exp(on_shared - _heads_first(most))
    own_weights = exp(on_own - most)
    out = _rows_first(shared_weights @ shared_values, rows) + own_weights @ own_values
    total = _rows_first(shared_weights.sum(axis=-1, keepdims=True), rows)
    total += own_weights.sum(axis=-1, keepdims=True)
    return (out / total).reshape(rows, num_heads, width, -1).astype(queries.dtype)


def _heads_first(x: mx.array) -> mx.array:
    """(rows, kv heads, queries, any) as (kv heads, rows * queries, any)."""
    rows, kv_heads, count, size = x.shape
    return x.swapaxes(0, 1).reshape(kv_heads, rows * count, size)


def _rows_first(x: mx.array, rows: int) -> mx.array:
    """(kv heads, rows * queries, any) as (rows, kv heads, queries, any)."""
    kv_heads, count, size = x.shape
    return x.reshape(kv_heads, rows, count // rows, size).swapaxes(0, 1)
