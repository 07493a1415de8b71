"""Attention over what the rows of a group share, read once for all of them."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from . import paged_attention
from .device import MULTIPROCESSORS
from .paged_attention import HeadPreparation, Projection, SharedSums
from .paged_kernel import HEADS_FILES
from .shared_rows import KEYS, SharedRows
from .source import Kernel, Template
from .window import WindowArrays

READY = """
  using Queries = ReadyQueries;
  const Queries from{queries, HEAD_DIM * GROUP * static_cast<int>(gridDim.y)};
  const int rows = queries_shape[0], width = queries_shape[1];
"""
PROJECTED = """
  using Queries = ProjectedQueries<Source>;
  const Queries from{source, starts};
  const int rows = projected_shape[0];
"""
ATTEND = """
  const int num_groups = (shared_rows_shape[0] - 1 - rows * (1 + FIRST_BLOCKS)) / 3;
  const SharedPrefix<Queries> prefix{
      from, key_pages, value_pages, tables, shared_rows, partial, stats,
      num_groups, width, static_cast<int>(gridDim.y),
      static_cast<int>(key_pages_shape[0] / (gridDim.y * BLOCK_SIZE)), tables_shape[1],
      static_cast<int>(gridDim.x), rows * width * GROUP, limits[1], scale[0]};
  extern __shared__ __align__(1024) unsigned char shared[];
  SharedPiece<HEAD_DIM, GROUP, BLOCK_SIZE, WARPGROUPS, SLOTS, Queries> piece(
      prefix, blockIdx.z, blockIdx.x);
  if (!piece.is_empty()) piece.run(shared);
"""

WARPGROUPS = 2
QUERIES = 64 * WARPGROUPS  # of a tile, see kernels/shared_prefix.cuh
SHARED_MEMORY = 226 * 1024  # of a block, at most
MOST_PIECES = 32
MOST_SLOTS = 8  # for keys of a tile, or its values
FILES = (
    *("warpgroup.cuh", "warpgroup_attention.cuh", "meeting.cuh", "stage_ring.cuh"),
    *("query_pieces.cuh", "shared_prefix.cuh"),
)
INPUTS = ("key_pages", "value_pages", "tables", "shared_rows")


def takes(preparation: HeadPreparation) -> bool:
    """Whether ``attend_projected`` turns heads so: pairs that one lane has both numbers of."""
    return preparation.rotary % 32 == 0


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
    rows, num_heads, width, head_dim = queries.shape
    group = num_heads // pages.shape.num_kv_heads
    kernel = _ready_kernel(head_dim, group, pages.block_size)
    inputs = [queries.transpose(0, 2, 1, 3), limits, scale]
    return _launch(kernel, inputs, pages, window, shared, sizes=(rows, width, group))


def attend_projected(
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    *,
    projected: mx.array,
    projection: Projection,
    preparation: HeadPreparation,
    constants: mx.array,
) -> SharedSums:
    """Prepare the queries in ``projected``, (rows, width, columns), and do as ``attend`` does.

    ``constants`` as in ``paged_attention.attend_projected``; ``takes`` says of which
    ``preparation``.
    """
    has_norm = preparation.q_norm is not None
    rows, width, _ = projected.shape
    kernel = _projected_kernel(projection, has_norm, preparation.rotary, pages.block_size)
    inputs = [projected, constants, window.starts]
    sizes = rows, width, projection.group
    return _launch(kernel, inputs, pages, window, shared, sizes=sizes)


def _launch(
    kernel: Kernel,
    inputs: list[mx.array],
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    *,
    sizes: tuple[int, int, int],
) -> SharedSums:
    rows, width, group = sizes
    head_dim, num_kv_heads = pages.shape.key_dim, pages.shape.num_kv_heads
    queries = rows * width * group
    tiles = -(-queries // QUERIES) + shared.num_groups - 1  # at most
    pieces = min(shared.num_positions // KEYS, MULTIPROCESSORS // (tiles * num_kv_heads))
    pieces = max(1, min(MOST_PIECES, pieces))
    sums = (num_kv_heads, pieces, queries)
    partial, stats = kernel(
        [*inputs, pages.keys, pages.values, window.tables, shared.packed],
        (pieces, num_kv_heads, tiles),
        [(*sums, head_dim), (*sums, 2)],
        [mx.bfloat16, mx.float32],
    )
    return SharedSums(shared, partial, stats)


@cache
def _ready_kernel(head_dim: int, group: int, block_size: int) -> Kernel:
    return _kernel(
        "shared_prefix",
        READY,
        ("queries", "limits", "scale"),
        [],
        head_dim=head_dim,
        group=group,
        block_size=block_size,
    )


@cache
def _projected_kernel(
    projection: Projection, has_norm: bool, rotary: int, block_size: int
) -> Kernel:
    return _kernel(
        "shared_prefix_projected",
        paged_attention.PROJECTED + PROJECTED,
        (*paged_attention.PROJECTED_INPUTS, "starts"),
        [
            ("T", mx.bfloat16),
            *paged_attention.source_template(projection, has_norm=has_norm, rotary=rotary),
        ],
        head_dim=projection.head_dim,
        group=projection.group,
        block_size=block_size,
    )


def _kernel(
    name: str,
    source: str,
    inputs: tuple[str, ...],
    template: Template,
    *,
    head_dim: int,
    group: int,
    block_size: int,
) -> Kernel:
    queries, item = QUERIES * head_dim * 2, KEYS * head_dim * 2  # bytes
    slots = min(MOST_SLOTS, (SHARED_MEMORY - queries) // item)
    return Kernel(
        name,
        ("warp.cuh", *HEADS_FILES, "paged_window.cuh", *FILES),
        source + ATTEND,
        (*inputs, *INPUTS),
        ("partial", "stats"),
        template=[
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("WARPGROUPS", WARPGROUPS),
            ("SLOTS", slots),
            *template,
        ],
        threads=128 * (WARPGROUPS + 1),
        shared_memory=queries + slots * item,
    )
