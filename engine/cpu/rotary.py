"""Rotary embedding in few operations, for float32 on a CPU.

MLX's own is some twenty operations there, for queries and keys of every layer, and most of them
make the sines and cosines anew. Those of one batch are the same for all layers.
"""

import threading
from functools import cache, partial
from math import log
from typing import Any

import mlx.core as mx
from mlx import nn

from ..quick_classes import exchange

Tables = tuple[mx.array, mx.array]


class QuickRoPE(nn.RoPE):
    """A RoPE whose tables last for a batch; results are nn.RoPE's up to rounding."""

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotate ``x``, (rows, heads, width, dim), of which each row stands at its ``offset``."""
        of_rows = isinstance(offset, mx.array) and offset.ndim == 1 and x.ndim == 4
        if not of_rows or self.traditional or x.dtype != mx.float32:
            plain: mx.array = super().__call__(x, offset)
            return plain
        dims, half = self.dims, self.dims // 2
        cosines, sines = _tables(offset, x.shape[2], dims, float(self.base), float(self.scale))
        rotated = _rotate(x[..., :half], x[..., half:dims], cosines, sines)
        rest = [x[..., dims:]] if dims < x.shape[-1] else []
        return mx.concatenate([*rotated, *rest], axis=-1)


def quicken(model: Any) -> int:
    """Give the rotary embeddings of ``model`` the quicker class; return how many."""
    return len(exchange(model, {nn.RoPE: QuickRoPE}))


def _tables(offset: mx.array, width: int, dims: int, base: float, scale: float) -> Tables:
    """Cosines and sines, (rows, 1, width, dims / 2), made once for an array of offsets."""
    if getattr(_last, "offset", None) is not offset:
        _last.offset, _last.tables = offset, {}
    tables: dict[Any, Tables] = _last.tables
    key = (width, dims, base, scale)
    if key not in tables:
        places = (mx.arange(width) + offset[:, None, None]).astype(mx.float32) * scale
        angles = places[..., None] * _frequencies(dims, base)
        tables[key] = mx.cos(angles), mx.sin(angles)
    return tables[key]


_last = threading.local()  # arrays that are not evaluated belong to threads


@cache
def _frequencies(dims: int, base: float) -> mx.array:
    half = dims // 2
    made = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (log(base) / half))
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made


@partial(mx.compile, shapeless=True)
def _rotate(x: mx.array, y: mx.array, cosines: mx.array, sines: mx.array) -> Tables:
    return x * cosines - y * sines, x * sines + y * cosines
