"""Where the numbers of each head lie in what a gated-delta layer's projections give.

Each of q, k, v, gate, b, a begins, for value head j of key head i, at column

    first + i * per_key_head + j * per_value_head

which holds for projections that lie apart, side by side, or interleaved by key head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from .device import on_device

Place = tuple[int, int, int]  # first, per_key_head, per_value_head


class Projections(NamedTuple):
    """A window's, (rows, width, ...) each, as kernels take them; they may be one array."""

    mixed: mx.array  # q, k, v before the convolution
    gate: mx.array  # z
    a: mx.array
    b: mx.array
    columns: mx.array  # (18,) int32: where in them each head's numbers lie


def _value_places(first: int, members: int, size: int) -> Place:
    return first, members * size, size


def _as_array(q: Place, k: Place, v: Place, gate: Place, ba: Sequence[Place]) -> mx.array:
    numbers = [number for place in (q, k, v, gate, *ba) for number in place]
    columns = on_device(mx.array(numbers, mx.int32))
    mx.eval(columns)
    return columns


def apart(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> mx.array:
    """q, k, v in one array; gate, b and a in arrays of their own. Returns (18,) int32."""
    members, keys = value_heads // key_heads, key_heads * key_dim
    return _as_array(
        (0, key_dim, 0),
        (keys, key_dim, 0),
        _value_places(2 * keys, members, value_dim),
        _value_places(0, members, value_dim),
        [_value_places(0, members, 1)] * 2,
    )


def side_by_side(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> mx.array:
    """One array: q, k, v | gate | b | a, as the projections of Qwen3.5 follow each other."""
    members, keys, values = value_heads // key_heads, key_heads * key_dim, value_heads * value_dim
    gate = 2 * keys + values
    return _as_array(
        (0, key_dim, 0),
        (keys, key_dim, 0),
        _value_places(2 * keys, members, value_dim),
        _value_places(gate, members, value_dim),
        [
            _value_places(gate + values, members, 1),
            _value_places(gate + values + value_heads, members, 1),
        ],
    )


def interleaved(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> mx.array:
    """One array: q, k, v, gate of each key head, then b, a of each: Qwen3-Next's projections."""
    members = value_heads // key_heads
    values = members * value_dim
    head = 2 * key_dim + 2 * values
    last = key_heads * head
    return _as_array(
        (0, head, 0),
        (key_dim, head, 0),
        (2 * key_dim, head, value_dim),
        (2 * key_dim + values, head, value_dim),
        [(last, 2 * members, 1), (last + members, 2 * members, 1)],
    )
