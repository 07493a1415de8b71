"""Which drafts stand, and what goes on from there: a launch instead of seven."""

from functools import cache

import mlx.core as mx

from .source import Kernel

THREADS = 256
ACCEPT = """
  const int row = blockIdx.x, rows = windows_shape[0], width = windows_shape[1];
  const unsigned* const said = picked + row * width;
  const int* const window = windows + row * width;
  int count = 0;
  while (count < width - 1 && static_cast<unsigned>(window[count + 1]) == said[count]) count++;
  if (threadIdx.x == 0) {
    following[row] = said[count];
    for (int step = 0; step < width - 1; step++)
      places[step * rows + row] = starts[row] + count + step;
  }
  const int size = hidden_shape[2];
  const T* const from = hidden + (static_cast<long long>(row) * width + count) * size;
  for (int i = threadIdx.x; i < size; i += THREADS) last[row * size + i] = from[i];
"""
JOIN = """
  const unsigned* const columns[COUNT] = {{{columns}}};
  for (int i = threadIdx.x; i < column0_shape[0] * COUNT; i += THREADS)
    joined[i] = static_cast<int>(columns[i % COUNT][i / COUNT]);
"""


def accept(
    picked: mx.array, windows: mx.array, hidden: mx.array, starts: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Accept the drafts of ``windows``, (rows, width) int32, up to the first not picked there.

    ``picked`` (rows * width,) uint32; ``hidden`` (rows, width, size); ``starts`` (rows,) int32 at
    least: the position after each window's first token. Returns the token picked after those that
    stand, (rows,) uint32; the hidden state of the last that stands, (rows, size); and where drafts
    after it are to be, (width - 1, rows) int32. The rule is that of ``drafting.offer.accept``.
    """
    rows, width, size = hidden.shape
    following, last, places = _accepting(hidden.dtype)(
        [picked, windows, hidden, starts],
        (rows, 1, 1),
        [(rows,), (rows, size), (width - 1, rows)],
        [mx.uint32, hidden.dtype, mx.int32],
    )
    return following, last, places


def join(columns: list[mx.array]) -> mx.array:
    """Return ``columns``, uint32 (rows,) each, side by side: int32 (rows, columns)."""
    rows = columns[0].size
    (joined,) = _joining(len(columns))(columns, (1, 1, 1), [(rows, len(columns))], [mx.int32])
    return joined


@cache
def _accepting(dtype: mx.Dtype) -> Kernel:
    return Kernel(
        "accept",
        (),
        ACCEPT,
        ("picked", "windows", "hidden", "starts"),
        ("following", "last", "places"),
        template=[("T", dtype), ("THREADS", THREADS)],
        threads=THREADS,
    )


@cache
def _joining(count: int) -> Kernel:
    names = [f"column{number}" for number in range(count)]
    return Kernel(
        "join",
        (),
        JOIN.format(columns=", ".join(names)),
        tuple(names),
        ("joined",),
        template=[("COUNT", count), ("THREADS", THREADS)],
        threads=THREADS,
    )
