"""Attention over what the rows of a group share, read once for all of them."""

from functools import cache

import mlx.core as mx

from ..pages import Pages
from . import paged_attention
from .paged_attention import HEADS_FILES, HeadPreparation, Projection, SharedSums
from .shared_rows import SharedRows
from .source import Kernel, Template
from .window import SPLIT, WindowArrays

ATTEND = """
  extern __shared__ __align__(16) unsigned char shared[];
  const SharedPrefix<Source> prefix{
      source, key_pages, value_pages, tables, starts, items, partial, stats,
      width, static_cast<int>(gridDim.y),
      static_cast<int>(key_pages_shape[0] / (gridDim.y * BLOCK_SIZE)), tables_shape[1],
      limits[1], scale[0]};
  SharedSplit<HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, PARTS, SETS, STAGES, Source>(prefix).run(shared);
"""
INPUTS = ("key_pages", "value_pages", "tables", "starts", "items", "limits", "scale")


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
    """Attend with ``queries``, (rows, heads, width, dim), to what their rows share."""
    _, num_heads, width, head_dim = queries.shape
    group = num_heads // pages.shape.num_kv_heads
    kernel = _strided_kernel(head_dim, group, pages.block_size)
    return _launch(
        kernel, [queries], pages, window, shared, each=width * group, constants=[limits, scale]
    )


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
    kernel = _projected_kernel(
        projection,
        weight is not None,
        0 if frequencies is None else 2 * frequencies.size,
        pages.block_size,
    )
    heads = [
        projected,
        _nothing() if weight is None else weight,
        preparation.epsilon,
        preparation.epsilon if frequencies is None else frequencies,
    ]
    each = projected.shape[1] * projection.group
    return _launch(kernel, heads, pages, window, shared, each=each, constants=[limits, scale])


@cache
def _nothing() -> mx.array:
    """What stands for weights that there are none of."""
    return mx.zeros((1,), mx.bfloat16)


def _launch(
    kernel: Kernel,
    heads: list[mx.array],
    pages: Pages,
    window: WindowArrays,
    shared: SharedRows,
    *,
    each: int,
    constants: list[mx.array],
) -> SharedSums:
    num_kv_heads = pages.shape.num_kv_heads
    sums = (window.num_rows, num_kv_heads, shared.num_splits, each)
    arrays = [pages.keys, pages.values, window.tables, window.starts, shared.items]
    partial, stats = kernel(
        [*heads, *arrays, *constants],
        (shared.num_splits, num_kv_heads, shared.items.shape[0]),
        [(*sums, pages.shape.key_dim), (*sums, 2)],
        [mx.float32, mx.float32],
    )
    return SharedSums(shared.splits, partial, stats, shared.num_own_splits)


STRIDED = """
  using Source = StridedHeads<T>;
  const Heads<T> heads{
      queries, queries_strides[0], queries_strides[1], queries_strides[2], queries_strides[3]};
  const Source source{heads, heads, heads};
  const int width = queries_shape[2];
"""
PROJECTED = """
  using Source = ProjectedHeads<
      T, ROTARY, NORM, GATED, QUERY_STRIDE, QUERY_OFFSET, KEY_OFFSET, VALUE_OFFSET>;
  const Source source{projected, query_norm, query_norm, epsilon, frequencies, projected_shape[2]};
  const int width = projected_shape[1];
"""


@cache
def _strided_kernel(head_dim: int, group: int, block_size: int) -> Kernel:
    return _kernel(
        "shared_prefix",
        STRIDED,
        ("queries",),
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
        PROJECTED,
        ("projected", "query_norm", "epsilon", "frequencies"),
        [
            ("ROTARY", rotary),
            ("NORM", int(has_norm)),
            ("GATED", int(projection.gated)),
            ("QUERY_STRIDE", projection.query_stride),
            ("QUERY_OFFSET", projection.query_offset),
            ("KEY_OFFSET", projection.key_offset),
            ("VALUE_OFFSET", projection.value_offset),
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
    # the sums and queries of a warp fill its registers
    parts, sets, stages = (4, 4, 4) if head_dim <= 128 else (2, 4, 4)
    row, queries, keys = head_dim + 8, paged_attention.QUERIES, paged_attention.KEYS
    ring = stages * 2 * parts * keys * row * 2
    exchanged = sets * parts * queries * 40 * 4
    return Kernel(
        name,
        ("warp.cuh", *HEADS_FILES, "paged_window.cuh", "shared_prefix.cuh"),
        source + ATTEND,
        (*inputs, *INPUTS),
        ("partial", "stats"),
        template=[
            ("T", mx.bfloat16),
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("SPLIT", SPLIT),
            ("PARTS", parts),
            ("SETS", sets),
            ("STAGES", stages),
            *template,
        ],
        threads=32 * sets * parts,
        shared_memory=ring + sets * queries * row * 2 + exchanged,
    )
