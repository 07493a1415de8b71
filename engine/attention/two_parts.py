"""Attention over keys that all rows share, read once, and keys that each row has of its own.

The scores of all rows on what they share are one matrix product; beside those on each row's own
keys they go through one softmax. That is the merge by log-sum-exp of two attentions, written as
one: the weights of both parts have one sum.
"""

import mlx.core as mx

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
    kv_heads, num_shared, _ = shared_keys.shape
    each = num_heads // kv_heads * width  # queries of a row that look into one K/V head
    scaled = (queries.astype(mx.float32) * scale).reshape(rows, kv_heads, each, dim)

    on_own = scaled @ own_keys.swapaxes(-1, -2)
    by_query = on_own.reshape(rows, num_heads, width, -1)
    on_own = mx.where(mask, by_query, -mx.inf).reshape(on_own.shape)
    on_shared = _heads_first(scaled) @ shared_keys.swapaxes(-1, -2)
    weights = mx.softmax(mx.concatenate([on_shared, _heads_first(on_own)], axis=-1), axis=-1)

    out = _rows_first(weights[..., :num_shared] @ shared_values, rows)
    out += _rows_first(weights[..., num_shared:], rows) @ own_values
    return out.reshape(rows, num_heads, width, -1).astype(queries.dtype)


def _heads_first(x: mx.array) -> mx.array:
    """(rows, kv heads, queries, any) as (kv heads, rows * queries, any)."""
    rows, kv_heads, count, size = x.shape
    return x.swapaxes(0, 1).reshape(kv_heads, rows * count, size)


def _rows_first(x: mx.array, rows: int) -> mx.array:
    """(kv heads, rows * queries, any) as (rows, kv heads, queries, any)."""
    kv_heads, count, size = x.shape
    return x.reshape(kv_heads, rows, count // rows, size).swapaxes(0, 1)
