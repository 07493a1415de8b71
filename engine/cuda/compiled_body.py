"""A model's body over short windows as one compiled graph for each of few shapes.

Building a step's graph anew costs as much host time as the step takes on the device. Here it is
traced once for a number of rows, a width and a length of block tables, each rounded up to one of
few; rows that only fill up are of length 0 and touch nothing but scratch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..forward import RunBody
from ..layers import Layer
from ..view import BatchView
from . import fusing
from .attention_layer import CudaAttentionLayer, CudaPagedCache
from .delta_layer import CudaDeltaLayer, CudaDeltaWindow, delta_table
from .window import WindowArrays, splits_for

WIDEST = 9  # tokens of a window
MOST_ROWS = 64
MOST_TOKENS = fusing.MOST_ROWS  # beyond them a step is long beside its building
MOST_CAPTURES = 2  # of a row that decodes: those of its folds and its own
ROW_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
FEWEST_BLOCKS = 16

Compiled = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array], mx.array]


class Shape(NamedTuple):
    """What a graph is traced for."""

    num_rows: int
    width: int
    num_blocks: int  # of a row's table
    block_size: int


class CompiledBody:
    """Stands for ``run`` where all caches are kernels' and the window is short."""

    def __init__(self, run: RunBody, layers: Sequence[Layer]) -> None:
        self._run = run
        self._layers = layers
        self._is_fit = all(isinstance(one, CudaAttentionLayer | CudaDeltaLayer) for one in layers)
        self._compiled: dict[Shape, Compiled] = {}

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        """Return (rows, width, hidden) after the final norm."""
        view = _view_of(caches)
        if not self._is_fit or view is None or not _is_short(view):
            return self._run(tokens, caches)
        batch = view.batch
        shape = Shape(
            next(count for count in ROW_STEPS if count >= batch.size),
            batch.width,
            max(FEWEST_BLOCKS, 1 << (batch.blocks.shape[1] - 1).bit_length()),
            batch.block_size,
        )
        if shape not in self._compiled:
            self._compiled[shape] = mx.compile(self._trace(shape))
        lacking = shape.num_rows - batch.size
        if lacking:
            tokens = mx.pad(tokens, [(0, lacking), (0, 0)])
        hidden = self._compiled[shape](
            tokens,
            mx.array(_padded(batch.starts, (shape.num_rows,))),
            mx.array(_padded(batch.lengths, (shape.num_rows,))),
            mx.array(_padded(batch.blocks, (shape.num_rows, shape.num_blocks))),
            mx.array(_padded(delta_table(view, MOST_CAPTURES), (shape.num_rows, -1))),
        )
        for cache in caches:
            cache.done = [hidden]  # which depends on all that every layer wrote
        return hidden[: batch.size] if lacking else hidden

    @property
    def num_shapes(self) -> int:
        """How many graphs have been traced."""
        return len(self._compiled)

    def _trace(self, shape: Shape) -> Compiled:
        def body(
            tokens: mx.array, starts: mx.array, lengths: mx.array, tables: mx.array, rows: mx.array
        ) -> mx.array:
            num_splits = splits_for(shape.num_blocks * shape.block_size)
            window = WindowArrays(starts, lengths, tables, num_splits)
            caches: list[Any] = []
            for layer in self._layers:
                if isinstance(layer, CudaAttentionLayer):
                    caches.append(CudaPagedCache(layer, shape.width, window))
                else:
                    assert isinstance(layer, CudaDeltaLayer)
                    caches.append(CudaDeltaWindow(layer, shape.width, rows))
            return self._run(tokens, caches)

        return body


def _view_of(caches: Sequence[Any]) -> BatchView | None:
    """The batch that all ``caches`` share, if they are kernels'."""
    if not caches or not all(isinstance(c, CudaPagedCache | CudaDeltaWindow) for c in caches):
        return None
    view: BatchView | None = caches[0].view
    return view


def _is_short(view: BatchView) -> bool:
    return (
        view.batch.width <= WIDEST
        and view.batch.size <= MOST_ROWS
        and view.batch.size * view.batch.width <= MOST_TOKENS
        and max(len(row.captures) for row in view.rows) <= MOST_CAPTURES
    )


def _padded(array: Any, shape: tuple[int, ...]) -> Any:
    """``array`` with zeros after it in each dimension; -1: as it is."""
    sizes = [was if wanted < 0 else wanted for was, wanted in zip(array.shape, shape, strict=True)]
    out = np.zeros(sizes, array.dtype)
    out[tuple(map(slice, array.shape))] = array
    return out
