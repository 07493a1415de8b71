"""Attention of rows that share a prefix, in one launch: the prefix and what each has of its own."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from . import paged_attention, shared_prefix
from .device import MULTIPROCESSORS
from .paged_attention import HeadPreparation, Projection
from .paged_kernel import (
    BFLOAT16_TILES,
    HEADS_FILES,
    KEYS,
    PAGES_INPUTS,
    QUERIES,
    num_halves,
    num_tiles,
    window_source,
)
from .shared_rows import KEYS as SHARED_KEYS
from .shared_rows import SharedRows
from .source import Kernel
from .window import SPLIT, WindowArrays

GRID = """
  const int own_tiles = (width * GROUP + QUERIES - 1) / QUERIES;
  const int before = gridDim.z - rows * own_tiles;
  const int prefix_tiles =
      (rows * width * GROUP + SHARED_QUERIES - 1) / SHARED_QUERIES +
      (shared_rows_shape[0] - 1 - 2 * rows) / 3 - 1;
  const int pieces = min(32, before * static_cast<int>(gridDim.x) / prefix_tiles);
  const int* positions = shared_rows + shared_rows_shape[0] - 1 - 2 * rows;
  const int most_splits = positions[2 * rows];
  const long long own_sums = (long long)rows * own_tiles * gridDim.y * most_splits * QUERIES;
  bfloat16* prefix_partial = reinterpret_cast<bfloat16*>(partial + own_sums * HEAD_DIM);
  float* prefix_stats = stats + own_sums * 2;
"""
TERMS = {
    "SPLITS": "most_splits",
    "BEFORE": "before",
    "SHARED": """{
          positions, prefix_partial, prefix_stats, pieces, rows * width * GROUP,
          positions + rows}""",
}
ATTEND = """
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ Merges merges;
  using Own = Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source>;
  if (blockIdx.z < before) {
    const int number = blockIdx.z * gridDim.x + blockIdx.x;
    using Piece =
        SharedPiece<HEAD_DIM, GROUP, BLOCK_SIZE, WARPGROUPS, SLOTS, HEAD_DIM <= 64, Queries>;
    const Piece piece(prefix, number / pieces, number % pieces);
    if (piece.is_empty()) return;
    piece.run(shared);
    find_merges<Own>(piece, window, merges);
  } else {
    using Tiles = TILES;
    Own share(window);
    const Tiles::Ahead ahead(share);
    auto tile_stats = reinterpret_cast<float(*)[QUERIES][2]>(shared + STATS_AT);
    if (!attend_to_splits<Tiles, WARPS>(share, ahead, shared, tile_stats)) return;
    if (threadIdx.x == 0) {
      merges.count = 1;
      merges.list[0] = blockIdx.z - before;
    }
    __syncthreads();
  }
  merge_tiles<WARPS, Own>(window, merges);
"""

WARPS = 4 * shared_prefix.WARPGROUPS
HELD = 1  # key tiles that a warp has room for
BLOCKS = 2  # on a multiprocessor
SHARED_MEMORY = 112 * 1024  # of a block, at most
MOST_AT_ONCE = 128  # numbers of a head: two blocks have room on a multiprocessor


def attend_projected(
    pages: Pages,
    window: WindowArrays,
    projected: mx.array,
    projection: Projection,
    preparation: HeadPreparation,
    *,
    counters: mx.array,
    constants: mx.array,
    shared: SharedRows | None,
) -> mx.array:
    """Do what ``paged_attention.attend_projected`` does, where rows may share something."""
    if shared is not None and projection.head_dim <= MOST_AT_ONCE:
        return attend_at_once(
            pages,
            window,
            projected,
            projection,
            preparation,
            counters=counters,
            constants=constants,
            shared=shared,
        )
    sums = None
    if shared is not None:
        sums = shared_prefix.attend_projected(
            pages,
            window,
            shared,
            projected=projected,
            projection=projection,
            preparation=preparation,
            constants=constants,
        )
    return paged_attention.attend_projected(
        pages,
        window,
        projected,
        projection,
        preparation,
        counters=counters,
        constants=constants,
        shared=sums,
    )


def attend_at_once(
    pages: Pages,
    window: WindowArrays,
    projected: mx.array,
    projection: Projection,
    preparation: HeadPreparation,
    *,
    counters: mx.array,
    constants: mx.array,
    shared: SharedRows,
) -> mx.array:
    """Do so in one launch, for heads of up to MOST_AT_ONCE."""
    rows, width, _ = projected.shape
    group, num_kv_heads, head_dim = (
        projection.group,
        projection.num_kv_heads,
        projection.head_dim,
    )
    kernel = _kernel(
        projection,
        preparation.q_norm is not None,
        preparation.rotary,
        pages.block_size,
        num_halves(group, width, pages.shape.dtype),
    )
    tiles, splits = num_tiles(group, width), shared.num_own_splits
    own = rows * tiles * num_kv_heads
    blocks = paged_attention.blocks_for(splits, own, BLOCKS * MULTIPROCESSORS)
    prefix_tiles, pieces = shared_prefix.tiles_and_pieces(shared, rows, width, group, num_kv_heads)
    before = -(-prefix_tiles * pieces // blocks)
    pieces = min(shared_prefix.MOST_PIECES, before * blocks // prefix_tiles)  # as the kernel does
    own_sums, prefix_sums = own * splits * QUERIES, own // tiles * pieces * width * group
    out, _, _ = kernel(
        [
            *(projected, constants, pages.keys, pages.values),
            *(window.tables, window.starts, window.lengths, counters, shared.packed),
        ],
        (blocks, num_kv_heads, before + rows * tiles),
        [
            (rows, width, projection.num_heads * head_dim),
            (own_sums * head_dim + prefix_sums * head_dim // 2,),
            (2 * (own_sums + prefix_sums),),
        ],
        [mx.bfloat16, mx.float32, mx.float32],
    )
    return out


@cache
def _kernel(
    projection: Projection, has_norm: bool, rotary: int, block_size: int, halves: int
) -> Kernel:
    head_dim = projection.head_dim
    slots = shared_prefix.num_slots(head_dim, SHARED_MEMORY)
    prefix = (shared_prefix.QUERIES + slots * SHARED_KEYS) * head_dim * 2
    own = (QUERIES + 2 * WARPS * HELD * KEYS) * (head_dim + 8) * 2
    body = (
        paged_attention.PROJECTED
        + shared_prefix.PROJECTED
        + GRID
        + window_source(TERMS)
        + shared_prefix.prefix_source(PARTIAL="prefix_partial", STATS="prefix_stats")
        + ATTEND.replace("TILES", BFLOAT16_TILES)
    )
    return Kernel(
        "prefix_attention_projected",
        (
            *("warp.cuh", *HEADS_FILES, "paged_window.cuh", "tensor_core_tiles.cuh"),
            *("paged_attention.cuh", *shared_prefix.FILES, "prefix_attention.cuh"),
        ),
        body,
        (*paged_attention.PROJECTED_INPUTS, *PAGES_INPUTS, "shared_rows"),
        ("out", "partial", "stats"),
        template=[
            ("T", mx.bfloat16),
            ("HEAD_DIM", head_dim),
            ("GROUP", projection.group),
            ("BLOCK_SIZE", block_size),
            ("SPLIT", SPLIT),
            ("WARPS", WARPS),
            ("HELD", HELD),
            ("HALVES", halves),
            ("WARPGROUPS", shared_prefix.WARPGROUPS),
            ("SLOTS", slots),
            ("STATS_AT", own),
            *paged_attention.source_template(projection, has_norm=has_norm, rotary=rotary),
        ],
        threads=32 * WARPS,
        blocks=BLOCKS,
        shared_memory=max(prefix, own + WARPS * QUERIES * 2 * 4),
    )
