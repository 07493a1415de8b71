"""Attention over what the rows of a group share, read once for all of them."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from . import paged_attention
from .paged_attention import HEADS_FILES, HeadPreparation, Projection, SharedSums
from .shared_rows import SharedRows
from .source import Kernel
from .window import SPLIT, WindowArrays

PREPARE = """
  using Source = ProjectedHeads<
      T, ROTARY, NORM, GATED, QUERY_STRIDE, QUERY_OFFSET, KEY_OFFSET, VALUE_OFFSET>;
  const Source source{projected, query_norm, query_norm, epsilon, frequencies, projected_shape[2]};
  prepare_queries<T, HEAD_DIM, WARPS>(
      source, starts, queries, projected_shape[0], projected_shape[1], NUM_HEADS, limits[1]);
"""
ATTEND = """
  extern __shared__ __align__(16) unsigned char shared[];
  const SharedPrefix prefix{
      queries, key_pages, value_pages, tables, items, partial, stats,
      queries_shape[1], static_cast<int>(gridDim.y),
      static_cast<int>(key_pages_shape[0] / (gridDim.y * BLOCK_SIZE)), tables_shape[1],
      limits[1], scale[0]};
  SharedSplit<HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, PARTS, SETS, STAGES>(prefix).run(shared);
"""


def why_not(pages_dtype: mx.Dtype, head_dim: int) -> str | None:
    """Say why a prefix in pages of this kind cannot be read once; None if it can."""
    if pages_dtype != mx.bfloat16:
        return f"pages of {str(pages_dtype).removeprefix('mlx.core.')}"
    if head_dim not in (64, 128, 256):
        return f"heads of {head_dim}, not 64, 128 or 256"
    return None


def attend(
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    queries: mx.array,
    *,
    limits: mx.array,
    scale: mx.array,
) -> SharedSums:
    """Attend with ``queries``, (rows, heads, width, dim), to what their rows share.

    ``limits`` and ``scale`` as in ``paged_attention.attend``, which takes what this returns. No
    sliding window may limit the layer.
    """
    return _attend(pages, window, shared, queries.transpose(0, 2, 1, 3), [limits, scale])


def attend_projected(
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    *,
    projected: mx.array,
    projection: Projection,
    preparation: HeadPreparation,
    limits: mx.array,
    scale: mx.array,
) -> SharedSums:
    """Prepare the queries in ``projected``, (rows, width, columns), and do as ``attend`` does."""
    weight, frequencies = preparation.q_norm, preparation.frequencies
    rotary = 0 if frequencies is None else 2 * frequencies.size
    kernel = _prepare_kernel(projected.dtype, projection, weight is not None, rotary)
    rows, width, _ = projected.shape
    shape = (rows, width, projection.num_heads, projection.head_dim)
    queries = kernel(
        [
            projected,
            preparation.epsilon if weight is None else weight,
            preparation.epsilon,
            preparation.epsilon if frequencies is None else frequencies,
            *(window.starts, limits),
        ],
        (-(-rows * width * projection.num_heads // (kernel.threads // 32)), 1, 1),
        [shape],
        [projected.dtype],
    )[0]
    return _attend(pages, window, shared, queries, [limits, scale])


def _attend(
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    queries: mx.array,
    constants: list[mx.array],
) -> SharedSums:
    rows, width, num_heads, head_dim = queries.shape
    num_kv_heads = pages.shape.num_kv_heads
    group = num_heads // num_kv_heads
    sums = (rows, num_kv_heads, shared.num_splits, width * group)
    partial, stats = _attend_kernel(head_dim, group, pages.block_size)(
        [queries, pages.keys, pages.values, window.tables, shared.items, *constants],
        (shared.num_splits, num_kv_heads, shared.items.shape[0]),
        [(*sums, head_dim), (*sums, 2)],
        [mx.float32, mx.float32],
    )
    return SharedSums(shared.splits, partial, stats, shared.num_own_splits)


@cache
def _prepare_kernel(dtype: mx.Dtype, projection: Projection, has_norm: bool, rotary: int) -> Kernel:
    warps = 8
    return Kernel(
        "prepare_queries",
        ("warp.cuh", *HEADS_FILES, "prepared_queries.cuh"),
        PREPARE if has_norm else PREPARE.replace("query_norm, query_norm", "nullptr, nullptr"),
        ("projected", "query_norm", "epsilon", "frequencies", "starts", "limits"),
        ("queries",),
        template=[
            ("T", dtype),
            ("HEAD_DIM", projection.head_dim),
            ("NUM_HEADS", projection.num_heads),
            ("WARPS", warps),
            *paged_attention.source_template(projection, has_norm=has_norm, rotary=rotary),
        ],
        threads=32 * warps,
    )


@cache
def _attend_kernel(head_dim: int, group: int, block_size: int) -> Kernel:
    # the sums and queries of a warp fill its registers; parts as in paged_attention
    parts, sets, stages = (4, 4, 4) if head_dim <= 128 else (2, 4, 4)
    row, queries, keys = head_dim + 8, paged_attention.QUERIES, paged_attention.KEYS
    ring = stages * 2 * parts * keys * row * 2
    exchanged = sets * parts * queries * 40 * 4
    return Kernel(
        "shared_prefix",
        ("warp.cuh", *HEADS_FILES, "paged_window.cuh", "shared_prefix.cuh"),
        ATTEND,
        ("queries", "key_pages", "value_pages", "tables", "items", "limits", "scale"),
        ("partial", "stats"),
        template=[
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("SPLIT", SPLIT),
            ("PARTS", parts),
            ("SETS", sets),
            ("STAGES", stages),
        ],
        threads=32 * sets * parts,
        shared_memory=ring + sets * queries * row * 2 + exchanged,
    )
