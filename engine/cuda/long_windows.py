"""What lies between the products of many rows, by kernels.

The products themselves are best left to a library; the norms of heads, rotary embeddings, writing
into pages and activations between them would each read and write all of it once more.
"""

from functools import cache

import mlx.core as mx
from mlx import nn

from ..pages import Pages
from .paged_attention import HeadPreparation
from .paged_kernel import HEADS_FILES
from .source import Kernel
from .window import WindowArrays

HEADS = 8  # of one token that a warp prepares

PREPARE = """
  const PromptHeads<T> heads{
      {queries, queries_strides[0], queries_strides[2], queries_strides[1], 1},
      {keys, keys_strides[0], keys_strides[2], keys_strides[1], 1},
      {values, values_strides[0], values_strides[2], values_strides[1], 1},
      query_norm, key_norm, epsilon, frequencies, tables, starts, lengths,
      static_cast<int>(queries_shape[0]), static_cast<int>(queries_shape[1]),
      static_cast<int>(queries_shape[2]), static_cast<int>(keys_shape[2]),
      static_cast<int>(key_pages_shape[0] / (keys_shape[2] * BLOCK_SIZE)),
      static_cast<int>(tables_shape[1]), limits[1],
      prepared, const_cast<T*>(key_pages), const_cast<T*>(value_pages)};
  prepare_heads<T, HEAD_DIM, ROTARY, NORM, BLOCK_SIZE, WARPS, HEADS>(heads);
  if (blockIdx.x + blockIdx.y + threadIdx.x == 0) written[0] = 0;
"""
SWIGLU = "multiply_gated(gate, up, out, gate_shape[0]);"
NORMS = "query_norm, key_norm"


def prepare_heads(
    pages: Pages,
    window: WindowArrays,
    preparation: HeadPreparation,
    *,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    limits: mx.array,
) -> tuple[mx.array, mx.array]:
    """Norm and turn ``queries`` and ``keys``; write keys and ``values`` into ``pages``.

    All come as projections leave them, (rows, width, heads, dim), with any strides but the last;
    ``limits`` as in ``paged_attention.attend``. Returns the queries, (rows, width, heads, dim), and
    an int32 zero, (1,): whoever reads the pages must depend on it. Nothing is written past a row's
    length.
    """
    rows, width, num_heads, head_dim = queries.shape
    weights = (preparation.q_norm, preparation.k_norm)
    frequencies = preparation.frequencies
    kernel = _heads_kernel(
        pages.shape.dtype, head_dim, preparation.rotary, weights[0] is not None, pages.block_size
    )
    all_heads = num_heads + 2 * keys.shape[2]
    prepared, written = kernel(
        [
            *(queries, keys, values, pages.keys, pages.values),
            *(preparation.epsilon if weight is None else weight for weight in weights),
            preparation.epsilon,
            preparation.epsilon if frequencies is None else frequencies,
            *(window.tables, window.starts, window.lengths, limits),
        ],
        (-(-rows * width // (kernel.threads // 32)), -(-all_heads // HEADS), 1),
        [(rows, width, num_heads, head_dim), (1,)],
        [pages.shape.dtype, mx.int32],
    )
    return prepared, written


@cache
def _heads_kernel(
    dtype: mx.Dtype, head_dim: int, rotary: int, has_norm: bool, block_size: int
) -> Kernel:
    warps = 8
    return Kernel(
        "prepare_heads",
        ("warp.cuh", *HEADS_FILES, "prompt_heads.cuh"),
        PREPARE if has_norm else PREPARE.replace(NORMS, "nullptr, nullptr"),
        (
            *("queries", "keys", "values", "key_pages", "value_pages", "query_norm", "key_norm"),
            *("epsilon", "frequencies", "tables", "starts", "lengths", "limits"),
        ),
        ("prepared", "written"),
        template=[
            ("T", dtype),
            ("HEAD_DIM", head_dim),
            ("ROTARY", rotary),
            ("NORM", has_norm),
            ("BLOCK_SIZE", block_size),
            ("WARPS", warps),
            ("HEADS", HEADS),
        ],
        threads=32 * warps,
        contiguous=False,
    )


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Return silu(gate) * up of bfloat16 arrays whose size is a multiple of eight."""
    flat = gate.reshape(-1)
    kernel = _swiglu_kernel()
    out = kernel(
        [flat, up.reshape(-1)],
        (-(-flat.size // (8 * kernel.threads)), 1, 1),
        [flat.shape],
        [flat.dtype],
    )[0]
    return out.reshape(gate.shape)


@cache
def _swiglu_kernel() -> Kernel:
    return Kernel(
        "multiply_gated",
        ("warp.cuh", "swiglu.cuh"),
        SWIGLU,
        ("gate", "up"),
        ("out",),
        template=[("THREADS", 256)],
        threads=256,
    )


def add_product(x: mx.array, y: mx.array, linear: nn.Linear) -> mx.array:
    """Return x + linear(y), of (rows, width, ...), in one product."""
    flat = mx.addmm(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), linear.weight.T)
    return flat.reshape(x.shape)


@mx.compile
def gated(out: mx.array, gate: mx.array) -> mx.array:
    """Return out * sigmoid(gate), in one pass whatever their strides."""
    return out * mx.sigmoid(gate)
