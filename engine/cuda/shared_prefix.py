"""Attention over what the rows of a group share, read once for all of them."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from . import paged_attention
from .device import MULTIPROCESSORS
from .paged_attention import HeadPreparation, Projection, SharedSums
from .paged_kernel import HEADS_FILES
from .shared_rows import KEYS, SharedRows
from .source import Kernel
from .window import WindowArrays

PREPARE = """
  using Source = ProjectedHeads<
      T, ROTARY, NORM, GATED, QUERY_STRIDE, QUERY_OFFSET, KEY_OFFSET, VALUE_OFFSET>;
  const Source source{projected, query_norm, query_norm, epsilon, frequencies, projected_shape[2]};
  prepare_queries<T, HEAD_DIM, WARPS>(
      source, starts, queries, projected_shape[0], projected_shape[1], NUM_HEADS, limits[1]);
"""
ATTEND = """
  extern __shared__ __align__(1024) unsigned char shared[];
  const SharedPrefix prefix{
      queries, key_pages, value_pages, tables, groups, partial, stats,
      groups_shape[0], queries_shape[1], static_cast<int>(gridDim.y),
      static_cast<int>(key_pages_shape[0] / (gridDim.y * BLOCK_SIZE)), tables_shape[1],
      limits[1], scale[0]};
  SharedPiece<HEAD_DIM, GROUP, BLOCK_SIZE, WARPGROUPS, STAGES>(prefix).run(shared);
"""

WARPGROUPS = 2
QUERIES = 64 * WARPGROUPS  # of a tile, see kernels/shared_prefix.cuh
SHARED_MEMORY = 227 * 1024  # of a block, at most


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
    tiles = -(-rows * width * group // QUERIES) + shared.groups.shape[0] - 1  # at most
    pieces = max(1, min(shared.num_positions // KEYS, MULTIPROCESSORS // (tiles * num_kv_heads)))
    sums = (rows, num_kv_heads, pieces, width * group)
    partial, stats = _attend_kernel(head_dim, group, pages.block_size)(
        [queries, pages.keys, pages.values, window.tables, shared.groups, *constants],
        (pieces, num_kv_heads, tiles),
        [(*sums, head_dim), (*sums, 2)],
        [mx.float32, mx.float32],
    )
    return SharedSums(shared.positions, partial, stats, shared.num_own_splits)


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
    queries, stage = QUERIES * head_dim * 2, 2 * KEYS * head_dim * 2
    stages = min(4, (SHARED_MEMORY - queries) // stage)
    return Kernel(
        "shared_prefix",
        (
            *("warp.cuh", "heads.cuh", "paged_window.cuh"),
            *("warpgroup.cuh", "warpgroup_attention.cuh", "shared_prefix.cuh"),
        ),
        ATTEND,
        ("queries", "key_pages", "value_pages", "tables", "groups", "limits", "scale"),
        ("partial", "stats"),
        template=[
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("WARPGROUPS", WARPGROUPS),
            ("STAGES", stages),
        ],
        threads=128 * WARPGROUPS,
        shared_memory=queries + stages * stage,
    )
