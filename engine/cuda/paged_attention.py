"""Launches of the kernels that attend with short windows over pages, which they write as well."""

from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from ..pages import Pages
from .device import MULTIPROCESSORS
from .paged_kernel import KEYS, QUERIES, num_halves, num_tiles, paged_kernel
from .shared_rows import SharedRows
from .source import Kernel, Template
from .window import WindowArrays, splits_for

MAX_WIDTH = 16  # tokens of a window that attends tile by tile


STRIDED = """
  using Source = StridedHeads<T>;
  const Source source{
      {queries, queries_strides[0], queries_strides[1], queries_strides[2], queries_strides[3]},
      {keys, keys_strides[0], keys_strides[1], keys_strides[2], keys_strides[3]},
      {values, values_strides[0], values_strides[1], values_strides[2], values_strides[3]}};
  const int width = queries_shape[2];
"""
PROJECTED = """
  using Source = ProjectedHeads<
      T, ROTARY, NORM, GATED, QUERY_STRIDE, QUERY_OFFSET, KEY_OFFSET, VALUE_OFFSET>;
  const int* limits = constants;  // as ``constants_of`` packs them
  const float* scale = reinterpret_cast<const float*>(constants + 2);
  const float* frequencies = scale + 2;
  const T* query_norm = reinterpret_cast<const T*>(frequencies + ROTARY / 2);
  const Source source{
      projected, query_norm, query_norm + HEAD_DIM, scale + 1, frequencies, projected_shape[2]};
  const int width = projected_shape[1];
"""
STRIDED_INPUTS = ("queries", "keys", "values", "limits", "scale")
PROJECTED_INPUTS = ("projected", "constants")


def why_not(pages_dtype: mx.Dtype, key_dim: int, value_dim: int, block_size: int) -> str | None:
    """Say why pages of this kind cannot be attended to by the kernel; None if they can."""
    if pages_dtype not in (mx.bfloat16, mx.float32):
        return f"pages of {str(pages_dtype).removeprefix('mlx.core.')}"
    if key_dim != value_dim:
        return f"keys of {key_dim} and values of {value_dim}"
    if key_dim % 32 or key_dim > 256:
        return f"heads of {key_dim}, not a multiple of 32 up to 256"
    if block_size % KEYS:
        return f"blocks of {block_size} positions, not a multiple of {KEYS}"
    return None


@dataclass(frozen=True, slots=True)
class Projection:
    """Where heads lie in the columns of a projection: each kind in order from its offset.

    ``query_stride`` counts numbers from one query to the next. Where heads are ``gated`` each
    query is followed by what is to be the sigmoid of its output's gate.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_stride: int
    query_offset: int
    key_offset: int
    value_offset: int
    gated: bool

    @property
    def group(self) -> int:
        """Queries that share a K/V head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class HeadPreparation:
    """What is done to heads before they meet: RMSNorm of queries and keys, then rotary embedding.

    Norms are (head_dim,) of the heads' type, both or none; ``epsilon`` (1,) float32.
    ``frequencies`` (dims / 2,) float32: the angle a position of the pair (i, i + dims / 2); numbers
    from ``dims`` on are not turned.
    """

    q_norm: mx.array | None
    k_norm: mx.array | None
    epsilon: mx.array
    frequencies: mx.array | None

    @property
    def rotary(self) -> int:
        """How many numbers of a head are turned."""
        return 0 if self.frequencies is None else 2 * self.frequencies.size


@dataclass(frozen=True, slots=True, eq=False)
class SharedSums:
    """Sums over positions that rows have in common, for a launch that adds each row's own."""

    rows: SharedRows
    partial: mx.array  # (K/V heads, pieces, rows * width * group, dim) bfloat16, normalised
    stats: mx.array  # (K/V heads, pieces, rows * width * group, 2) float32


def attend(
    pages: Pages,
    window: WindowArrays,
    *,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    counters: mx.array,
    limits: mx.array,
    scale: mx.array,
    shared: SharedSums | None = None,
) -> mx.array:
    """Write ``keys`` and ``values`` into ``pages`` and attend; all (rows, heads, width, dim).

    ``counters`` are zeros, at least one for each row, tile of 16 queries and K/V head; ``limits``
    (2,) the sliding window and the first position that holds anything; ``scale`` (1,) float32.
    ``shared``: what ``shared_prefix.attend`` returned for the same queries, if anything is shared.
    Returns (rows, heads, width, dim), which is what a reader of the pages must depend on.
    """
    rows, num_heads, width, head_dim = queries.shape
    group = num_heads // pages.shape.num_kv_heads
    dtype = queries.dtype
    out = _launch(
        *_strided_kernel(
            dtype,
            head_dim,
            group,
            pages.block_size,
            halves=num_halves(group, width, dtype),
            has_shared=shared is not None,
        ),
        [queries, keys, values, limits, scale],
        pages,
        window,
        shape=(rows, width, num_heads, head_dim),
        num_heads=num_heads,
        counters=counters,
        shared=shared,
    )
    return out.transpose(0, 2, 1, 3)


def attend_projected(
    pages: Pages,
    window: WindowArrays,
    projected: mx.array,
    projection: Projection,
    preparation: HeadPreparation,
    *,
    counters: mx.array,
    constants: mx.array,
    shared: SharedSums | None = None,
) -> mx.array:
    """Prepare the heads in ``projected``, (rows, width, columns), and do what ``attend`` does.

    ``constants`` are those that ``constants_of`` makes of the ``preparation``. Returns (rows,
    width, heads * dim), gated where the projection is.
    """
    rows, width, _ = projected.shape
    return _launch(
        *_projected_kernel(
            pages.shape.dtype,
            projection,
            preparation.q_norm is not None,
            preparation.rotary,
            pages.block_size,
            halves=num_halves(projection.group, width, pages.shape.dtype),
            has_shared=shared is not None,
        ),
        [projected, constants],
        pages,
        window,
        shape=(rows, width, projection.num_heads * projection.head_dim),
        num_heads=projection.num_heads,
        counters=counters,
        shared=shared,
    )


def constants_of(preparation: HeadPreparation, limits: mx.array, scale: mx.array) -> mx.array:
    """Join what a layer's launches have in common: each array of a launch costs the host time.

    ``limits`` and ``scale`` as ``attend`` takes them; positions of the rotary embedding count from
    ``limits[1]``. Returns int32, whatever the numbers are.
    """
    parts = [limits[:2], scale[:1], preparation.epsilon[:1]]
    further = (preparation.frequencies, preparation.q_norm, preparation.k_norm)
    parts += [part for part in further if part is not None]
    return mx.concatenate([part.view(mx.int32) for part in parts])


def _launch(
    kernel: Kernel,
    blocks: int,
    heads: list[mx.array],
    pages: Pages,
    window: WindowArrays,
    *,
    shape: tuple[int, ...],
    num_heads: int,
    counters: mx.array,
    shared: SharedSums | None,
) -> mx.array:
    rows, width = shape[:2]
    head_dim = pages.shape.key_dim
    num_kv_heads = pages.shape.num_kv_heads
    tiles = num_tiles(num_heads // num_kv_heads, width)
    splits = window.num_splits if shared is None else shared.rows.num_own_splits
    is_merged = splits > 1 or shared is not None
    groups = rows * tiles * num_kv_heads
    most = splits if shared else splits_for(window.tables.shape[1] * pages.block_size)
    parts = groups * most * QUERIES if is_merged else 1
    arrays = [pages.keys, pages.values, window.tables, window.starts, window.lengths, counters]
    sums = [] if shared is None else [shared.rows.packed, shared.partial, shared.stats]
    out, _, _ = kernel(
        [*heads, *arrays, *sums],
        (blocks_for(splits, groups, blocks * MULTIPROCESSORS), num_kv_heads, rows * tiles),
        [shape, (parts * head_dim,), (parts * 2,)],
        [pages.shape.dtype, mx.float32, mx.float32],
    )
    return out


@cache
def blocks_for(splits: int, groups: int, at_once: int) -> int:
    """How many blocks to deal ``splits`` out to, of each of ``groups``.

    Few have to wait for each other; many do the same preparations. A block takes about a third of
    the time for these that it takes for a split, and ``at_once`` run on the device.
    """

    def time(blocks: int) -> int:
        return -(-groups * blocks // at_once) * (1 + 3 * -(-splits // blocks))

    return min(range(1, splits + 1), key=lambda blocks: (time(blocks), -blocks))


@cache
def _strided_kernel(
    dtype: mx.Dtype, head_dim: int, group: int, block_size: int, *, halves: int, has_shared: bool
) -> tuple[Kernel, int]:
    return paged_kernel(
        "paged_attention",
        STRIDED,
        STRIDED_INPUTS,
        [],
        dtype=dtype,
        head_dim=head_dim,
        group=group,
        block_size=block_size,
        halves=halves,
        has_shared=has_shared,
        contiguous=False,
    )


@cache
def _projected_kernel(
    dtype: mx.Dtype,
    projection: Projection,
    has_norm: bool,
    rotary: int,
    block_size: int,
    *,
    halves: int,
    has_shared: bool,
) -> tuple[Kernel, int]:
    return paged_kernel(
        "paged_attention_projected",
        PROJECTED,
        PROJECTED_INPUTS,
        source_template(projection, has_norm=has_norm, rotary=rotary),
        dtype=dtype,
        head_dim=projection.head_dim,
        group=projection.group,
        block_size=block_size,
        halves=halves,
        has_shared=has_shared,
        contiguous=True,
    )


def source_template(projection: Projection, *, has_norm: bool, rotary: int) -> Template:
    """Return the arguments of ``ProjectedHeads``, see kernels/projected_heads.cuh."""
    return [
        ("ROTARY", rotary),
        ("NORM", int(has_norm)),
        ("GATED", int(projection.gated)),
        ("QUERY_STRIDE", projection.query_stride),
        ("QUERY_OFFSET", projection.query_offset),
        ("KEY_OFFSET", projection.key_offset),
        ("VALUE_OFFSET", projection.value_offset),
    ]
