"""Products of few rows by very many rows of weights, on warpgroups: kernels/wide_product.cuh.

A vocabulary, mostly. Rows come out the same, bitwise, however many there are, but not the same as
from the other forms of the product (product_form.py), whose sums have another order.
"""

from functools import cache

import mlx.core as mx

from .device import MULTIPROCESSORS, count_multiprocessors
from .source import Kernel

FEWEST_COLUMNS = 16 * 6 * MULTIPROCESSORS
CHUNK, TILE = 64, 384  # numbers of the depth of a stage, columns of a round
STAGES = 4
THREADS = 384
BODY = """
  extern __shared__ __align__(128) unsigned char memory[];
  WideProduct<ROWS, STAGES> product{x, weights, out, 1, weights_shape[1], weights_shape[0]};
  for (int i = 0; i < x_ndim - 1; i++) product.rows *= x_shape[i];
  product.run(memory);
"""


def takes(weight: mx.array) -> bool:
    """Whether the kernel multiplies by ``weight``, which product.takes, and is to."""
    return weight.shape[0] >= FEWEST_COLUMNS and count_multiprocessors() > 0


def multiply(x: mx.array, weight: mx.array) -> mx.array:
    """Return x @ weight.T in bfloat16 with float32 sums; ``x`` (..., depth) has up to 64 rows."""
    rows = x.size // x.shape[-1]
    return _kernel(next(count for count in (8, 16, 32, 64) if count >= rows))(
        [x, weight], (MULTIPROCESSORS, 1, 1), [(*x.shape[:-1], weight.shape[0])], [x.dtype]
    )[0]


@cache
def _kernel(rows: int) -> Kernel:
    stage = 2 * CHUNK * (TILE + rows)
    return Kernel(
        "wide_product",
        (
            *("warp.cuh", "warpgroup.cuh", "warpgroup_rows.cuh", "meeting.cuh", "stage_ring.cuh"),
            "wide_product.cuh",
        ),
        BODY,
        ("x", "weights"),
        ("out",),
        template=[("ROWS", rows), ("STAGES", STAGES)],
        threads=THREADS,
        shared_memory=STAGES * (stage + 16) + 1024,  # alignment and arrivals included
    )
