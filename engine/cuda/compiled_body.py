"""A model's body over short windows as one compiled graph for each of few shapes.

Building a step's graph anew costs as much host time as the step takes on the device. Here it is
traced once for a number of rows, a width and a length of block tables, each rounded up to one of
few; rows that only fill up are of length 0 and touch nothing but scratch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..batch import Batch, Int32s
from ..forward import RunBody
from ..layers import Layer
from ..view import BatchView
from . import fusing, product
from .attention_layer import CudaAttentionLayer
from .chains import ChainRun
from .delta_layer import CudaDeltaLayer, CudaDeltaWindow, delta_table
from .device import on_device
from .paged_cache import CudaPagedCache
from .shared_rows import SharedPlan, SharedRows, packed_size
from .upload import Upload
from .window import WindowArrays, splits_for, table_width

WIDEST = 9  # tokens of a window
MOST_ROWS = 64
MOST_TOKENS = fusing.MOST_ROWS  # beyond them a step is long beside its building
MOST_CAPTURES = 2  # of a row that decodes: those of its folds and its own
ROW_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)

Compiled = Callable[[mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]
"""Tokens, packed arrays, what the run before left of its chains -> hidden states, the same."""


class Shape(NamedTuple):
    """What a graph is traced for."""

    num_rows: int
    width: int
    num_blocks: int  # of a row's table
    block_size: int
    num_groups: int = 0  # of rows that share positions
    num_shared: int = 0
    num_own_splits: int = 0

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The arrays that are packed into one, in order."""
        return {
            "starts": (self.num_rows,),
            "lengths": (self.num_rows,),
            "blocks": (self.num_rows, self.num_blocks),
            "delta": (self.num_rows, 7 + 2 * MOST_CAPTURES),
            "shared": (packed_size(self.num_rows, self.num_groups),),
        }


class CompiledBody:
    """Stands for ``run`` where all caches are kernels' and the window is short."""

    def __init__(self, run: RunBody, layers: Sequence[Layer]) -> None:
        self._run = run
        self._layers = layers
        self._is_fit = all(isinstance(one, CudaAttentionLayer | CudaDeltaLayer) for one in layers)
        self._has_delta = any(isinstance(one, CudaDeltaLayer) for one in layers)
        self._compiled: dict[Shape, Compiled] = {}
        self.undo()

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        self._upload = Upload()
        self._chained = mx.zeros((1,), mx.bfloat16)  # what the last run left of its chains
        mx.eval(self._chained)

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        """Return (rows, width, hidden) after the final norm."""
        view = _view_of(caches)
        if not self._is_fit or view is None:
            return self._run(tokens, caches)
        batch = view.batch
        if not (
            is_short(batch) and _may_capture(view)
        ):  # its tokens are many, and looked up where they lie
            tokens = on_device(tokens)[: tokens.size].reshape(tokens.shape)
            return self._run(tokens, caches)
        num_rows = next(count for count in ROW_STEPS if count >= batch.size)
        num_blocks = table_width(batch.blocks.shape[1])
        shape = Shape(num_rows, batch.width, num_blocks, batch.block_size)
        arrays = {
            "starts": batch.starts,
            "lengths": batch.lengths,
            "blocks": batch.blocks,
        }
        if self._has_delta:
            arrays["delta"] = delta_table(view, MOST_CAPTURES)
        plan = SharedPlan.of(batch)
        if plan is not None:
            plan = plan.rounded(num_rows)
            shape = shape._replace(
                num_groups=len(plan.groups),
                num_shared=plan.num_positions,
                num_own_splits=plan.num_own_splits,
            )
            arrays["shared"] = plan.packed
        if shape not in self._compiled:
            self._compiled[shape] = mx.compile(self._trace(shape))
        lacking = num_rows - batch.size
        if lacking:
            tokens = mx.pad(tokens, [(0, lacking), (0, 0)])
        packed = self._upload.write(_parts(arrays, shape))
        hidden, self._chained = self._compiled[shape](tokens, packed, self._chained)
        self._upload.until(hidden)
        caches[0].done = [hidden]  # which depends on all that every layer wrote
        return hidden[: batch.size] if lacking else hidden

    def _trace(self, shape: Shape) -> Compiled:
        def body(
            tokens: mx.array, packed: mx.array, chained: mx.array
        ) -> tuple[mx.array, mx.array]:
            size = sum(map(math.prod, shape.sizes.values()))
            arrays = _unpacked(on_device(packed[:size]), shape)
            num_splits = splits_for(shape.num_blocks * shape.block_size)
            window = WindowArrays(arrays["starts"], arrays["lengths"], arrays["blocks"], num_splits)
            shared = None
            if shape.num_groups:
                shared = SharedRows(
                    arrays["shared"],
                    shape.num_groups,
                    shape.num_shared,
                    shape.num_own_splits,
                )
            caches: list[Any] = []
            for layer in self._layers:
                if isinstance(layer, CudaAttentionLayer):
                    caches.append(CudaPagedCache(layer, shape.width, window, shared))
                else:
                    assert isinstance(layer, CudaDeltaLayer)
                    caches.append(CudaDeltaWindow(layer, shape.width, arrays["delta"]))
            chain = ChainRun(self, chained)
            if shape.num_rows * shape.width <= product.MOST_ROWS:
                for cache in caches:
                    cache.chain = chain
            hidden = self._run(tokens, caches)
            return hidden, chain.done

        return body


def _view_of(caches: Sequence[Any]) -> BatchView | None:
    """The batch that all ``caches`` share, if they are kernels'."""
    if not caches or not all(isinstance(c, CudaPagedCache | CudaDeltaWindow) for c in caches):
        return None
    view: BatchView | None = caches[0].view
    return view


def is_short(batch: Batch) -> bool:
    """Whether graphs of short windows take ``batch``."""
    return (
        batch.width <= WIDEST
        and batch.size <= MOST_ROWS
        and batch.size * batch.width <= MOST_TOKENS
    )


def _may_capture(view: BatchView) -> bool:
    return max(len(row.captures) for row in view.rows) <= MOST_CAPTURES


def _parts(arrays: Mapping[str, Int32s], shape: Shape) -> list[Int32s]:
    """``arrays`` in their order, each with zeros up to its size."""
    parts = []
    for name, sizes in shape.sizes.items():
        part = np.zeros(sizes, np.int32)
        if name in arrays:
            part[tuple(map(slice, arrays[name].shape))] = arrays[name]
        parts.append(part)
    return parts


def _unpacked(packed: mx.array, shape: Shape) -> dict[str, mx.array]:
    """What ``_parts`` joined, as views."""
    arrays, at = {}, 0
    for name, sizes in shape.sizes.items():
        size = math.prod(sizes)
        arrays[name] = packed[at : at + size].reshape(sizes)
        at += size
    return arrays
