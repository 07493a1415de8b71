"""Launches of the gated-delta kernels for long windows, all of whose tokens are certain.

In bfloat16 in chunks of 64 tokens by tensor cores (kernels/delta_chunks.cuh), the gated norm too;
else token by token, as short windows run.
"""

from collections.abc import Mapping
from functools import cache

import mlx.core as mx

from ..slots import Slots
from .delta import POOLS, SET_WEIGHTS, SETUP, SOURCES, THREADS, WEIGHTS, DeltaShape, kernel_inputs
from .delta_columns import Projections
from .prompt_attention import ARCHITECTURE
from .source import Kernel, Template

TOKENS = 16  # that a block takes at a time, one by one
CHUNK = 64  # tokens that tensor cores take at a time
PROMPT = ("mixed", "gate", "a", "b", "columns", *WEIGHTS, "rows", *POOLS)
TERMS = ("q", "k", "w", "u", "scores", "factors")
PREPARED = ("q", "k", "v", "decay", "beta")

SET_PROMPT = f"""{SETUP}{SET_WEIGHTS}
  const DeltaPrompt<S> all{{
      {{mixed, mixed_strides[0], mixed_strides[1]}}, {{gate, gate_strides[0], gate_strides[1]}},
      {{b, b_strides[0], b_strides[1]}}, {{a, a_strides[0], a_strides[1]}},
      columns, weights, rows, rows_shape[1], mixed_shape[1], pools}};
"""
PREPARE = f"""{SET_PROMPT}
  prepare_tokens<S, TOKENS>(all, {{q, k, v, decay, beta}});
"""
RUN = f"""{SET_PROMPT}
  const PreparedTokens<S> prepared{{
      const_cast<T*>(q), const_cast<T*>(k), const_cast<T*>(v), const_cast<float*>(decay),
      const_cast<float*>(beta)}};
  run_tokens<S, TOKENS>(all, prepared, out);
"""
PREPARE_CHUNKS = f"""{SET_PROMPT}
  prepare_chunk<S>(all, {{q, k, w, u, scores, factors, static_cast<int>(gridDim.x)}});
"""
RUN_CHUNKS = f"""{SET_PROMPT}
  const ChunkTerms<S> terms{{
      const_cast<__half*>(q), const_cast<__half*>(k), const_cast<__half*>(w),
      const_cast<__half*>(u), const_cast<__half*>(scores), const_cast<float*>(factors),
      static_cast<int>(w_shape[1])}};
  run_chunks<S>(all, terms, out);
"""


def takes_chunks(shape: DeltaShape) -> bool:
    """Whether tensor cores take prompts of such a layer."""
    is_fit = {shape.key_dim, shape.value_dim} <= {64, 128} and shape.dtype == mx.bfloat16
    return is_fit and mx.device_info()["architecture"] == ARCHITECTURE


def run_chunks(
    shape: DeltaShape,
    slots: Slots,
    weights: Mapping[str, mx.array],
    rows: mx.array,
    projections: Projections,
) -> mx.array:
    """Do what ``delta.run_window`` does for windows of any length without drafts.

    Results do not depend on the other rows, but, in their last digits, on where windows begin.
    """
    count, width = projections.mixed.shape[:2]
    captures = (rows.shape[1] - 7) // 2
    chunks = -(-width // CHUNK) + captures  # each may end one early
    prepare, run = _chunk_kernels(shape)
    key_heads, value_heads = (
        (count, chunks, shape.num_key_heads),
        (count, chunks, shape.num_value_heads),
    )
    inputs = kernel_inputs(slots, weights, rows, projections)
    terms = prepare(
        inputs,
        (chunks, shape.num_value_heads, count),
        [
            (*key_heads, CHUNK, shape.key_dim),
            (*key_heads, CHUNK, shape.key_dim),
            (*value_heads, CHUNK, shape.key_dim),
            (*value_heads, CHUNK, shape.value_dim),
            (*value_heads, CHUNK, CHUNK),
            (*value_heads, 2, CHUNK),
        ],
        [*[mx.float16] * 5, mx.float32],
    )
    return run(
        [*inputs, *terms],
        (shape.num_value_heads, count, 1),
        [(count, width, shape.num_value_heads, shape.value_dim)],
        [shape.dtype],
    )[0]


@cache
def _chunk_kernels(shape: DeltaShape) -> tuple[Kernel, Kernel]:
    sources = (*SOURCES, "delta_prompt.cuh", "delta_chunks.cuh")
    keys, values = shape.key_dim + 8, shape.value_dim + 8  # numbers apart in shared memory
    stage = 2 * CHUNK * (3 * shape.key_dim + CHUNK) + 1024  # its factors in what is left
    prepare = Kernel(
        "prepare_chunk",
        sources,
        PREPARE_CHUNKS,
        PROMPT,
        TERMS,
        template=shape.template(),
        threads=THREADS,
        blocks=3,
        shared_memory=CHUNK * (2 * (2 * keys + values + CHUNK + 8 + 24) + 4 * (16 + 3)),
        contiguous=False,
    )
    run = Kernel(
        "run_chunks",
        (*sources, "warpgroup.cuh", "warpgroup_halves.cuh", "delta_chunk_run.cuh"),
        RUN_CHUNKS,
        (*PROMPT, *TERMS),
        ("out",),
        template=shape.template(),
        threads=2 * shape.value_dim,
        shared_memory=2 * stage + CHUNK * 4 * (shape.value_dim + 4),
        contiguous=False,
    )
    return prepare, run


def run_tokens(
    shape: DeltaShape,
    slots: Slots,
    weights: Mapping[str, mx.array],
    rows: mx.array,
    projections: Projections,
) -> mx.array:
    """Run windows token by token, so that they come out as ``delta.run_window``'s, bitwise.

    Returns the recurrence's output before the gated norm, (rows, width, value heads, value dim).
    """
    count, width = projections.mixed.shape[:2]
    keys = (count, width, shape.num_key_heads, shape.key_dim)
    values = (count, width, shape.num_value_heads, shape.value_dim)
    prepare, run = _token_kernels(shape)
    inputs = kernel_inputs(slots, weights, rows, projections)
    prepared = prepare(
        inputs,
        (-(-width // TOKENS), shape.num_value_heads, count),
        [keys, keys, values, values[:3], values[:3]],
        [shape.dtype, shape.dtype, shape.dtype, mx.float32, mx.float32],
    )
    return run(
        [*inputs, *prepared],
        (shape.num_value_heads * (shape.value_dim // 32), count, 1),
        [values],
        [shape.dtype],
    )[0]


@cache
def _token_kernels(shape: DeltaShape) -> tuple[Kernel, Kernel]:
    template: Template = [*shape.template(), ("TOKENS", TOKENS)]
    sources = (*SOURCES, "delta_prompt.cuh")
    prepare = Kernel(
        "prepare_tokens",
        sources,
        PREPARE,
        PROMPT,
        PREPARED,
        template=template,
        threads=THREADS,
        shared_memory=4 * TOKENS * shape.channels,
        contiguous=False,
    )
    run = Kernel(
        "run_tokens",
        sources,
        RUN,
        (*PROMPT, *PREPARED),
        ("out",),
        template=template,
        threads=THREADS,
        blocks=3,
        shared_memory=4 * 2 * TOKENS * (2 * shape.key_dim + 32 + 2),
        contiguous=False,
    )
    return prepare, run
