"""Attention of wide windows on a CPU: queries in tiles whose scores stay in the processor's cache.

    queries of a tile  x  the positions that its last query sees, not those behind

Faster than MLX's own where its scores of a prompt's chunk outgrow the cache and a tile still holds
several queries; with fewer, keys and values would be read again for every one or two of them.
"""

import mlx.core as mx

from .exponential import exp

_SCORES = 1 << 18  # of one tile: 1 MiB
_FEWEST = 1 << 16  # scores of a whole window below which MLX's own attention is as fast
_FEWEST_QUERIES = 8  # of a tile
HIDDEN = -3e38  # finite: a padding query that sees nothing must not become NaN


def pays(queries: mx.array, keys: mx.array) -> bool:
    """Whether tiles are faster for ``queries`` and ``keys``, as in attend_in_tiles."""
    rows, num_heads, width, _ = queries.shape
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    is_single = queries.dtype == keys.dtype == mx.float32
    scores = rows * num_heads * keys.shape[2]  # of one query of each row
    is_wide = scores * width >= _FEWEST and scores * _FEWEST_QUERIES <= _SCORES
    return on_cpu and is_single and is_wide


def attend_in_tiles(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array,
    num_seen: int,
) -> mx.array:
    """Return the attention of ``queries``, (rows, heads, width, dim), float32.

    keys, values: (rows, kv heads, positions, dim), seen where ``mask``, (rows, 1, width,
    positions), says so. Of any row the first query sees at most the first ``num_seen`` positions,
    each query after it one more.
    """
    rows, num_heads, width, dim = queries.shape
    kv_heads, num_positions = keys.shape[1:3]
    count = max(1, _SCORES // (rows * num_heads * num_positions))
    scaled = queries * scale
    tiles = []
    for first in range(0, width, count):
        last = min(width, first + count)
        end = min(num_positions, num_seen + last - 1)
        shape = (rows, kv_heads, num_heads // kv_heads * (last - first), dim)
        scores = scaled[:, :, first:last].reshape(shape) @ keys[:, :, :end].swapaxes(-1, -2)
        seen = mx.broadcast_to(mask[:, :, first:last, :end], (rows, num_heads, last - first, end))
        scores = mx.where(seen.reshape(scores.shape), scores, HIDDEN)
        weights = exp(scores - scores.max(axis=-1, keepdims=True))
        tile = weights @ values[:, :, :end] / weights.sum(axis=-1, keepdims=True)
        tiles.append(tile.reshape(rows, num_heads, last - first, -1))
    return tiles[0] if len(tiles) == 1 else mx.concatenate(tiles, axis=2)
