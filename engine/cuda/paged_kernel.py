"""The kernel that attends with short windows over pages, in the forms that it is launched in."""

from typing import NamedTuple

import mlx.core as mx

from .source import Kernel, Template
from .window import SPLIT

KEYS = QUERIES = 16  # of a tile, see kernels/paged_window.cuh


class Form(NamedTuple):
    """How a block works."""

    warps: int  # those of one head size are alike, or results would depend on the window
    held: int  # key tiles that a warp has room for
    blocks: int  # on a multiprocessor


FLOAT32_FORM = Form(4, 1, 3)
FORMS = {  # by whether heads are larger than 128, and by halves of a tile of queries
    (False, 1): Form(5, 1, 4),
    (False, 2): Form(5, 2, 2),
    (True, 1): Form(6, 1, 2),
    (True, 2): Form(6, 1, 2),
}

WINDOW = """
  const PagedWindow<T, Source> window{
      source, const_cast<T*>(key_pages), const_cast<T*>(value_pages),
      tables, starts, lengths, const_cast<int*>(counters), out, partial, stats,
      width, static_cast<int>(gridDim.y),
      static_cast<int>(key_pages_shape[0] / (gridDim.y * BLOCK_SIZE)), tables_shape[1],
      SPLITS, limits[0], limits[1], scale[0], SHARED};
"""
ATTEND = """
  using Tiles = TILES;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float tile_stats[Tiles::PARTS][QUERIES][2];
  paged_attention<Tiles, T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, WARPS, ROOM>(
      window, shared, tile_stats, shared + ROOM_AT);
"""
BFLOAT16_TILES = "TensorCoreTiles<HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, WARPS, HELD, HALVES>"
FLOAT32_TILES = "FloatTiles<HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, WARPS>"
HEADS_FILES = ("heads.cuh", "projected_heads.cuh")
ALONE = {
    "SPLITS": "max(1, (tables_shape[1] * BLOCK_SIZE - 1) / SPLIT)",
    "SHARED": "{}",
}
SHARED = {  # ``shared_rows`` as shared_rows.py packs them
    "SPLITS": "shared_rows[shared_rows_shape[0] - 1]",
    "SHARED": """{
          shared_rows + shared_rows_shape[0] - 1 - tables_shape[0] * (1 + FIRST_BLOCKS),
          shared_rows + shared_rows_shape[0] - 1 - tables_shape[0] * FIRST_BLOCKS,
          shared_partial, shared_stats, shared_partial_shape[1], shared_partial_shape[2]}""",
}
SHARED_INPUTS = ("shared_rows", "shared_partial", "shared_stats")
PAGES_INPUTS = ("key_pages", "value_pages", "tables", "starts", "lengths", "counters")


def paged_kernel(
    name: str,
    source: str,
    inputs: tuple[str, ...],
    template: Template,
    *,
    dtype: mx.Dtype,
    head_dim: int,
    group: int,
    block_size: int,
    halves: int,
    has_shared: bool,
    contiguous: bool,
) -> tuple[Kernel, int]:
    """Make one; return it and how many blocks of it run on a multiprocessor.

    ``source`` is the code that makes a Source of ``inputs``, see kernels/paged_window.cuh, a width,
    limits and a scale; ``halves`` how many times 8 queries a tile may have.
    """
    if dtype == mx.float32:
        form, tiles_file, tiles = FLOAT32_FORM, "float_tiles.cuh", FLOAT32_TILES
        shared = (QUERIES + 2 * KEYS) * (head_dim + 4) * 4
    else:
        form, tiles_file, tiles = (
            FORMS[head_dim > 128, halves],
            "tensor_core_tiles.cuh",
            BFLOAT16_TILES,
        )
        shared = (QUERIES + 2 * form.warps * form.held * KEYS) * (head_dim + 8) * 2
    # for what pieces of shared positions come to: 32 parts, and what they weigh
    room = 32 * (2 * head_dim + 8) if has_shared and halves == 1 and head_dim <= 128 else 0
    body = source + window_source(SHARED if has_shared else ALONE) + ATTEND.replace("TILES", tiles)
    kernel = Kernel(
        f"{name}_sums" if has_shared else name,
        ("warp.cuh", *HEADS_FILES, "paged_window.cuh", tiles_file, "paged_attention.cuh"),
        body,
        (*inputs, *PAGES_INPUTS, *(SHARED_INPUTS if has_shared else ())),
        ("out", "partial", "stats"),
        template=[
            ("T", dtype),
            ("HEAD_DIM", head_dim),
            ("GROUP", group),
            ("BLOCK_SIZE", block_size),
            ("SPLIT", SPLIT),
            ("WARPS", form.warps),
            ("HELD", form.held),
            ("HALVES", halves),
            ("ROOM_AT", shared),
            ("ROOM", room),
            *template,
        ],
        threads=32 * form.warps,
        blocks=form.blocks,
        shared_memory=shared + room,
        contiguous=contiguous,
    )
    return kernel, form.blocks


def window_source(terms: dict[str, str]) -> str:
    """Return the code that makes ``window``, with ``terms`` for the words in capitals."""
    code = WINDOW
    for word, term in terms.items():
        code = code.replace(word, term)
    return code


def num_halves(group: int, width: int, dtype: mx.Dtype) -> int:
    """How many times 8 queries a tile may have: of a query both kernels say the same, bitwise."""
    return 1 if dtype == mx.float32 or group * width <= QUERIES // 2 else 2


def num_tiles(group: int, width: int) -> int:
    """How many tiles of queries share one K/V head of a row."""
    return -(-group * width // QUERIES)
