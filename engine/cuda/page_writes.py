"""Launches of the kernels that write long windows into pages, and copy pieces of pools."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from .source import Kernel
from .window import WindowArrays

WRITE = """
  write_pages<T, BLOCK_SIZE>(
      {keys, keys_strides[0], keys_strides[1], keys_strides[2], keys_strides[3]},
      {values, values_strides[0], values_strides[1], values_strides[2], values_strides[3]},
      const_cast<T*>(key_pages), const_cast<T*>(value_pages),
      tables, tables_shape[1], starts[blockIdx.z], lengths[blockIdx.z],
      key_pages_shape[0] / (keys_shape[1] * BLOCK_SIZE), keys_shape[3]);
  if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) written[0] = 0;
"""

COPY = """
  const long long piece = blockIdx.y, size = SIZE;
  const T* from = pool + sources[piece] * size;
  T* to = const_cast<T*>(pool) + targets[piece] * size;
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x)
    to[i] = from[i];
  if (blockIdx.x + blockIdx.y + threadIdx.x == 0) copied[0] = 0;
"""


def write(pages: Pages, window: WindowArrays, keys: mx.array, values: mx.array) -> mx.array:
    """Write ``keys`` and ``values``, (rows, heads, width, dim), into ``pages``.

    Returns an int32 zero, (1,): whoever reads the pages must depend on it.
    """
    rows, heads, width, head_dim = keys.shape
    kernel = _write_kernel(pages.shape.dtype, pages.block_size)
    return kernel(
        [
            *(keys, values, pages.keys, pages.values),
            *(window.tables, window.starts, window.lengths),
        ],
        (-(-width * head_dim // kernel.threads), heads, rows),
        [(1,)],
        [mx.int32],
    )[0]


@cache
def _write_kernel(dtype: mx.Dtype, block_size: int) -> Kernel:
    return Kernel(
        "write_pages",
        ("warp.cuh", "heads.cuh", "page_write.cuh"),
        WRITE,
        ("keys", "values", "key_pages", "value_pages", "tables", "starts", "lengths"),
        ("written",),
        template=[("T", dtype), ("BLOCK_SIZE", block_size)],
        threads=256,
        contiguous=False,
    )


def copy_pieces(pool: mx.array, size: int, sources: list[int], targets: list[int]) -> mx.array:
    """Copy pieces of ``size`` numbers within ``pool``: piece sources[i] onto targets[i].

    ``pool`` is taken as one row of pieces. Evaluate the int32 zero that is returned before anything
    reads the pool, and whatever wrote to it before this is evaluated.
    """
    kernel = _copy_kernel(pool.dtype, size)
    return kernel(
        [pool, mx.array(sources, mx.int32), mx.array(targets, mx.int32)],
        (min(64, -(-size // kernel.threads)), len(sources), 1),
        [(1,)],
        [mx.int32],
    )[0]


@cache
def _copy_kernel(dtype: mx.Dtype, size: int) -> Kernel:
    return Kernel(
        "copy_pieces",
        ("warp.cuh",),
        COPY,
        ("pool", "sources", "targets"),
        ("copied",),
        template=[("T", dtype), ("SIZE", size)],
        threads=256,
    )
