"""Products with few rows by a kernel: what decoding a small batch mostly waits for.

A cuBLAS call costs the CPU about 36 us to encode, a kernel of our own about 7; and rows come out
the same however many there are.
"""

from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn

from .source import Kernel

MOST_ROWS = 64
WARPS = 8
DEPTH_STEP = 32 * WARPS  # the depth must be a multiple of it
COLUMN_STEP = 16
WIDE = 8192  # columns from which a block takes two tiles of them
BODY = """
  int rows = 1;
  for (int i = 0; i < x_ndim - 1; i++) rows *= x_shape[i];
  skinny_product<ROW_TILES, COLUMN_TILES, WARPS, 4, BIAS>(
      x, w, bias, out, rows, w_shape[0], w_shape[1]);
"""


def takes(weight: mx.array) -> bool:
    """Whether the kernel multiplies by ``weight``, (columns, depth)."""
    columns, depth = weight.shape
    return weight.dtype == mx.bfloat16 and not (depth % DEPTH_STEP or columns % (2 * COLUMN_STEP))


def multiply(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Return x @ weight.T (+ bias) for x (..., depth) of at most MOST_ROWS rows, in bfloat16."""
    rows, columns = x.size // x.shape[-1], weight.shape[0]
    assert rows <= MOST_ROWS
    column_tiles = next(tiles for tiles in (1, 2, 4, 8) if 8 * tiles >= rows)
    row_tiles = 2 if columns >= WIDE and column_tiles <= 4 else 1
    return _kernel(row_tiles, column_tiles, bias is not None)(
        [x, weight, weight if bias is None else bias],
        (columns // (COLUMN_STEP * row_tiles), 1, 1),
        [(*x.shape[:-1], columns)],
        [mx.bfloat16],
    )[0]


@cache
def _kernel(row_tiles: int, column_tiles: int, has_bias: bool) -> Kernel:
    return Kernel(
        "skinny_product",
        ("warp.cuh", "skinny_product.cuh"),
        BODY,
        ("x", "w", "bias"),
        ("out",),
        template=[
            ("ROW_TILES", row_tiles),
            ("COLUMN_TILES", column_tiles),
            ("WARPS", WARPS),
            ("BIAS", int(has_bias)),
        ],
        threads=32 * WARPS,
        blocks=2,
        shared_memory=4 * WARPS * row_tiles * 16 * (column_tiles * 8 + 2),
    )


def _is_for_kernel(x: mx.array) -> bool:
    return x.dtype == mx.bfloat16 and 0 < x.size <= MOST_ROWS * x.shape[-1]


class SkinnyLinear(nn.Linear):
    """A Linear whose products with few rows are the kernel's."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        if not _is_for_kernel(x):
            out: mx.array = super().__call__(x)
            return out
        return multiply(x, self["weight"], self.get("bias", None))


class SkinnyEmbedding(nn.Embedding):
    """An Embedding that is the output layer too."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        if not _is_for_kernel(x):
            out: mx.array = super().as_linear(x)
            return out
        return multiply(x, self["weight"])


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def bind(model: Any) -> int:
    """Give the products of ``model`` that the kernel takes their class; return how many.

    Only these instances change.
    """
    found = [m for m in model.modules() if type(m) in SKINNY and takes(m["weight"])]
    for module in found:
        module.__class__ = SKINNY[type(module)]
    return len(found)
