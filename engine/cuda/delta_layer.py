"""A gated-delta layer by kernels: one launch for a decode or verify window, two for a prompt."""

from typing import Any

import mlx.core as mx
import numpy as np

from ..layers import Layer
from ..recurrence.windows import FusedWindow
from ..slots import Slots
from ..view import BatchView
from . import delta, delta_columns, delta_prompt
from .chains import ChainRun
from .delta_columns import Projections
from .device import on_device
from .page_writes import copy_pieces


class CudaDeltaLayer(Layer):
    """A GatedDeltaNet with write on accept, whose slots kernels read and write."""

    kind = "gated delta rule by CUDA kernels, write on accept"

    def __init__(self, module: Any, shape: delta.DeltaShape, num_slots: int) -> None:
        self.shape = shape
        self.slots = Slots(shape.layout(), num_slots)
        self.weights = delta.layer_weights(module)
        self.apart = delta_columns.apart(*shape.heads)
        mx.eval(self.weights, self.apart)

    def open(self, view: BatchView) -> "CudaDeltaWindow":
        return CudaDeltaWindow(self, view.batch.width, view=view)

    def pending(self, cache: "CudaDeltaWindow") -> list[mx.array]:
        return cache.done

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        return [
            copy_pieces(pool, pool.size // self.slots.num_slots, [source], [target])
            for pool in self.slots.arrays
        ]

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays


class CudaDeltaWindow(FusedWindow):
    """One gated-delta layer's share of a batch; kernels store what the round may keep.

    Without a view it is of a window that is traced.
    """

    def __init__(
        self,
        layer: CudaDeltaLayer,
        width: int,
        rows: mx.array | None = None,
        *,
        view: BatchView | None = None,
    ) -> None:
        self.layer = layer
        self.view = view
        self._rows = rows
        self.width = width
        self.done: list[mx.array] = []  # to evaluate, for the slots to hold the window
        self.chain: ChainRun | None = None  # of a traced window whose blocks multiply in chains

    @property
    def rows(self) -> mx.array:
        """How each row runs: made when it is asked for, a compiled body has its own."""
        if self._rows is None:
            assert self.view is not None
            self._rows = delta_rows(self.view)
        return self._rows

    @property
    def takes_projected(self) -> bool:
        """Whether ``run_projected`` takes this window."""
        return self.width <= delta.MAX_WIDTH

    def run_projected(self, projected: mx.array, columns: mx.array) -> mx.array:
        """Return what ``run`` does, (rows, width, numbers of all heads).

        All inputs lie in ``projected``; see delta_columns.
        """
        layer = self.layer
        normed = delta.run_window(
            layer.shape,
            layer.slots,
            layer.weights,
            self.rows,
            Projections(projected, projected, projected, projected, columns),
            joined=True,
        )
        self.done = [normed]
        return normed

    def run(self, module: Any, qkv: mx.array, z: mx.array, b: mx.array, a: mx.array) -> mx.array:
        """Return the normed output, (rows, width, value heads, value dim)."""
        layer = self.layer
        is_short = self.width <= delta.MAX_WIDTH
        if not is_short:
            assert self.view is not None
            has_drafts = self.view.batch.has_drafts
            assert not has_drafts, f"drafts in a window of more than {delta.MAX_WIDTH} tokens"
        is_chunked = not is_short and delta_prompt.takes_chunks(layer.shape)
        launch = delta_prompt.run_chunks if is_chunked else delta_prompt.run_tokens
        out = (delta.run_window if is_short else launch)(
            layer.shape,
            layer.slots,
            layer.weights,
            self.rows,
            Projections(qkv, z, a, b, layer.apart),
        )
        self.done = [out]
        if is_short or is_chunked:
            return out
        normed: mx.array = module.norm(out, z)
        return normed


def delta_rows(view: BatchView) -> mx.array:
    """How each row runs, (rows, 7 + 2 captures) int32; see DeltaRow in kernels/delta_rule.cuh."""
    if CudaDeltaWindow not in view.shared:
        most = max(len(row.captures) for row in view.rows)
        table = delta_table(view, most)
        view.shared[CudaDeltaWindow] = on_device(mx.array(table)).reshape(table.shape)
    rows: mx.array = view.shared[CudaDeltaWindow]
    return rows


def delta_table(view: BatchView, most: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """``delta_rows`` before it goes to the device, with room for ``most`` captures a row."""
    rows = view.rows
    table = np.zeros((len(rows), 7 + 2 * most), np.int32)
    table[:, :7] = [
        (
            row.slot or 0,
            target,
            row.start == 0,
            row.fold,
            len(row.tokens),
            0,
            len(row.captures),
        )
        for row, target in zip(rows, view.slots, strict=True)
    ]
    table[:, 5] = view.batch.lengths
    for line, row in zip(table, rows, strict=True):
        for number, capture in enumerate(row.captures):
            steps = capture.position - (row.start - row.fold)
            line[7 + 2 * number : 9 + 2 * number] = steps, capture.slot
    return table
