"""Rows of many arrays side by side, in one launch: MLX would copy each array by one of its own."""

from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from .source import Kernel

MOST = 128  # arrays of either kind: their addresses fit into what a launch takes
THREADS = 128
ROW_BITS = 16  # of a place: the array's number stands before them
GATHER = """
  __shared__ const T* from;
  const int place = places[blockIdx.x];
  if (threadIdx.x == 0) {
    const int array = place >> ROW_BITS, row = place & ((1 << ROW_BITS) - 1);
    const T* const all_hidden[COUNT] = {<hidden>};
    const int* const all_tokens[COUNT] = {<tokens>};
    from = all_hidden[array] + static_cast<long long>(row) * hidden0_shape[2];
    out_tokens[blockIdx.x] = all_tokens[array][row];
  }
  __syncthreads();
  const int size = hidden0_shape[2];
  T* const to = out_hidden + static_cast<long long>(blockIdx.x) * size;
  for (int i = threadIdx.x; i < size; i += THREADS) to[i] = from[i];
"""


def takes(tokens: Sequence[mx.array], hidden: Sequence[mx.array]) -> bool:
    """Whether the kernel gathers from these, (rows, 1) and (rows, 1, size) each."""
    kinds = {(array.dtype, array.shape[2]) for array in hidden}
    return (
        len(hidden) <= MOST
        and len(kinds) == 1
        and all(array.dtype == mx.int32 for array in tokens)
        and all(array.shape[0] < 1 << ROW_BITS for array in hidden)
    )


def gather(
    tokens: Sequence[mx.array], hidden: Sequence[mx.array], arrays: Int32s, rows: Int32s
) -> tuple[mx.array, mx.array]:
    """Return row ``rows[i, j]`` of array ``arrays[i, j]``, for tokens and for hidden states.

    They are (lines, longest) and (lines, longest, size), as ``arrays`` and ``rows`` are.
    """
    places = mx.array((arrays << ROW_BITS | rows).astype(np.int32))
    lacking = MOST - len(hidden)  # one kernel for all numbers of arrays
    inputs = [*hidden, *[hidden[0]] * lacking, *tokens, *[tokens[0]] * lacking, places]
    size = hidden[0].shape[2]
    kernel = _kernel(hidden[0].dtype)
    outputs = kernel(
        inputs,
        (arrays.size, 1, 1),
        [arrays.shape, (*arrays.shape, size)],
        [mx.int32, hidden[0].dtype],
    )
    return outputs[0], outputs[1]


@cache
def _kernel(dtype: mx.Dtype) -> Kernel:
    hidden, tokens = ([f"{kind}{n}" for n in range(MOST)] for kind in ("hidden", "tokens"))
    body = GATHER.replace("<hidden>", ", ".join(hidden)).replace("<tokens>", ", ".join(tokens))
    return Kernel(
        "gather_rows",
        (),
        body,
        (*hidden, *tokens, "places"),
        ("out_tokens", "out_hidden"),
        template=[("T", dtype), ("COUNT", MOST), ("ROW_BITS", ROW_BITS), ("THREADS", THREADS)],
        threads=THREADS,
    )
