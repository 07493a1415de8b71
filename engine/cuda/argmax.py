"""Where the highest logit of a row is, by a kernel: MLX's own takes long for few long rows."""

from functools import cache

import mlx.core as mx

from .source import Kernel

THREADS = 1024
AHEAD = 4  # pieces of 16 bytes that a thread asks for at a time
BODY = """
  argmax<T, THREADS, AHEAD>(numbers, numbers_shape[numbers_ndim - 1], out);
"""


def takes(numbers: mx.array) -> bool:
    """Whether the kernel finds the highest of each row of ``numbers``."""
    return numbers.ndim > 0 and numbers.size > 0 and numbers.dtype in (mx.bfloat16, mx.float32)


def argmax(numbers: mx.array) -> mx.array:
    """Return where the highest number of each row of ``numbers`` (..., columns) is, (...), uint32.

    Of equal ones the first; a row of nothing but -inf gives 0.
    """
    rows = numbers.size // numbers.shape[-1]
    return _kernel(numbers.dtype)([numbers], (rows, 1, 1), [numbers.shape[:-1]], [mx.uint32])[0]


@cache
def _kernel(dtype: mx.Dtype) -> Kernel:
    return Kernel(
        "argmax",
        ("warp.cuh", "argmax.cuh"),
        BODY,
        ("numbers",),
        ("out",),
        template=[("T", dtype), ("THREADS", THREADS), ("AHEAD", AHEAD)],
        threads=THREADS,
    )
