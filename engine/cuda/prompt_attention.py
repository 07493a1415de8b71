"""Attention of long windows over pages that hold the windows' keys and values already."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from .source import Kernel
from .window import WindowArrays

KEYS = 64  # of a tile, see kernels/prompt_attention.cuh
ARCHITECTURE = "sm_90"  # whose products of a warpgroup the kernel is made of

ATTEND = """
  extern __shared__ __align__(1024) unsigned char shared[];
  const int num_kv_heads = queries_shape[1] / GROUP;
  const PromptWindow window{
      {queries, queries_strides[0], queries_strides[1], queries_strides[2], queries_strides[3]},
      key_pages, value_pages, tables, starts, lengths, out, queries_shape[2], num_kv_heads,
      static_cast<int>(key_pages_shape[0] / (num_kv_heads * BLOCK_SIZE)), tables_shape[1],
      limits[0], limits[1], scale[0]};
  PromptAttention<HEAD_DIM, GROUP, BLOCK_SIZE, WARPGROUPS>(window).run(shared);
"""


def why_not(pages_dtype: mx.Dtype, head_dim: int) -> str | None:
    """Say why pages that paged_attention takes cannot take this kernel; None if they can."""
    architecture = mx.device_info()["architecture"]
    if architecture != ARCHITECTURE:
        return f"a device of {architecture}, not {ARCHITECTURE}"
    if pages_dtype != mx.bfloat16:
        return f"pages of {str(pages_dtype).removeprefix('mlx.core.')}"
    if head_dim % 64:
        return f"heads of {head_dim}, not a multiple of 64"
    return None


def attend_prompt(
    pages: Pages,
    window: WindowArrays,
    queries: mx.array,
    written: mx.array,
    *,
    limits: mx.array,
    scale: mx.array,
) -> mx.array:
    """Attend to all that ``pages`` hold up to each query's own position.

    ``queries``: (rows, heads, width, dim), bfloat16; ``written``: what ``page_writes.write``
    returned for the window's K/V; ``limits`` (2,) the sliding window and the first position that
    holds anything; ``scale`` (1,) float32. Returns (rows, heads, width, dim), zeros past a row's
    length. A query's result does not depend on how its prompt was cut into windows, bitwise.
    """
    rows, num_heads, width, head_dim = queries.shape
    num_kv_heads = pages.shape.num_kv_heads
    group = num_heads // num_kv_heads
    kernel, tile = _kernel(head_dim, group, pages.block_size)
    out = kernel(
        [
            *(queries, pages.keys, pages.values),
            *(window.tables, window.starts, window.lengths, written, limits, scale),
        ],
        (rows * num_kv_heads, -(-width * group // tile), 1),
        [(rows, width, num_heads, head_dim)],
        [pages.shape.dtype],
    )[0]
    return out.transpose(0, 2, 1, 3)


@cache
def _kernel(head_dim: int, group: int, block_size: int) -> tuple[Kernel, int]:
    """The kernel and how many queries a tile of it has."""
    warpgroups = 2  # and two blocks of a multiprocessor: one multiplies while another weighs
    queries = warpgroups * 64
    kernel = Kernel(
        "prompt_attention",
        (
            *("warp.cuh", "heads.cuh", "warpgroup.cuh"),
            *("warpgroup_attention.cuh", "prompt_attention.cuh"),
        ),
        ATTEND,
        (
            *("queries", "key_pages", "value_pages", "tables", "starts", "lengths"),
            *("written", "limits", "scale"),
        ),
        ("out",),
        template=[
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("WARPGROUPS", warpgroups),
        ],
        threads=128 * warpgroups,
        blocks=2 if head_dim <= 128 else 1,
        shared_memory=(queries + 4 * KEYS) * head_dim * 2,
        contiguous=False,
    )
    return kernel, queries
