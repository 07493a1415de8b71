"""Triangular systems of the gated delta rule: masks, and the inverse of I + A."""

from functools import cache

import mlx.core as mx


def inverse(strictly_lower: mx.array) -> mx.array:
    """(I + A)^-1 for strictly lower triangular A, (..., size, size).

    A^size is zero, so the inverse is a finite product of (I + (-A)^(2^n)).
    """
    size = strictly_lower.shape[-1]
    power = strictly_lower
    found = _eye(size) - power
    reached = 2
    while reached < size:
        power = power @ power
        found = found + found @ power
        reached *= 2
    return found


@cache
def _eye(size: int) -> mx.array:
    made = mx.eye(size)
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made


@cache
def masks(size: int) -> tuple[mx.array, mx.array]:
    """Where j <= i and where j < i, (size, size)."""
    full = mx.ones((size, size), dtype=mx.bool_)
    made = mx.tril(full), mx.tril(full, -1)
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made
