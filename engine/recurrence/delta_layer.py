"""A gated-delta layer: state, convolution inputs and records in slots."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from ..lanes import Lanes
from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView
from .forms import RecurrenceForm
from .gated_delta import DeltaWindow, DividedWindow, WindowPart, read_records, take_history
from .rows import RecurrentRows

WINDOW = 16  # tokens: rows of shorter windows decode, and will be back next round
LANE_VALUES = 1 << 18  # of the states, for each token: from here on dividing the rows is worth it


class DeltaLayer(Layer):
    """A GatedDeltaNet with write on accept: certain tokens enter the state, drafts are recorded.

    With several ``lanes`` the rows of larger batches are divided among them.
    """

    def __init__(
        self,
        layout: Mapping[str, SlotArray],
        num_slots: int,
        *,
        taps: int,
        form: RecurrenceForm,
        lanes: Lanes | None = None,
    ) -> None:
        self.slots = Slots(layout, num_slots)
        self.taps = taps
        self.recurrence = form.run
        self.kind = f"gated delta rule {form.name}, write on accept"
        self.lanes = lanes

    def open(self, view: BatchView) -> "OpenDelta | DividedWindow":
        stretches = self.lanes.divide(view.batch.size) if self.lanes is not None else []
        if len(stretches) < 2 or self._values(view) < LANE_VALUES:
            return OpenDelta(self, view.recurrent)
        parts = []
        for stream, first, end in stretches:
            with mx.stream(stream):
                window = OpenDelta(self, view.part(first, end))
            parts.append(WindowPart(stream, first, end, window))
        return DividedWindow(parts)

    def pending(self, cache: "OpenDelta | DividedWindow") -> list[mx.array]:
        return [array for window in _windows(cache) for _, _, array in window.writes()]

    def store(self, view: BatchView, cache: "OpenDelta | DividedWindow") -> list[mx.array]:
        stays = view.batch.width <= WINDOW
        for window in _windows(cache):
            for name, slots, array in window.writes():
                mine = slots is window.rows.slots
                self.slots.write(name, slots, array, stays=stays and mine)
        return self.slots.arrays

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.slots.copy(source, target)
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays

    def _values(self, view: BatchView) -> int:
        """Values of the states that the batch's tokens update."""
        rows, state = view.batch.size, self.slots.layout["state"].shape
        return rows * view.batch.width * state[0] * state[1] * state[2]


def _windows(cache: "OpenDelta | DividedWindow") -> "list[OpenDelta]":
    if isinstance(cache, OpenDelta):
        return [cache]
    return [part.window for part in cache.parts if isinstance(part.window, OpenDelta)]


class OpenDelta(DeltaWindow):
    """A DeltaWindow read from slots, with what has to be written back to them."""

    def __init__(self, layer: DeltaLayer, rows: RecurrentRows) -> None:
        slots, index = layer.slots, rows.slots
        state, history = slots.read("state", index), slots.read("history", index)
        self.fold_history = history
        self.fold_states: list[mx.array] = []
        if rows.fresh is not None:
            state = mx.where(rows.fresh[:, None, None, None], 0, state)
            history = mx.where(rows.fresh[:, None, None], 0, history)
        if rows.fold is not None:
            records = read_records(slots, index, rows.fold.width)
            _, self.fold_states = rows.fold.run(layer.recurrence, records, state)
            state = self.fold_states[-1]
            history = take_history(history, rows.folds, layer.taps)
        else:
            history = history[:, : layer.taps]
        super().__init__(history, state, rows.window, layer.recurrence)
        self.layer = layer
        self.rows = rows
        self._writes: list[tuple[str, list[int], mx.array]] | None = None

    def writes(self) -> list[tuple[str, list[int], mx.array]]:
        """(array name, slots, rows) of everything to store, once the module has run."""
        if self._writes is None:
            self._writes = [*self._row_writes(), *self._capture_writes()]
        return self._writes

    def _row_writes(self) -> list[tuple[str, list[int], mx.array]]:
        rows, stop = self.rows, self.rows.certain_stop
        certain = rows.window.stops[stop]
        drafts = rows.lengths - certain
        most = int(drafts.max())
        assert self.conv_input is not None
        length = self.records["k"].shape[1]
        assert length == rows.width, "a layer recorded another window than its row's"
        writes = [("state", rows.slots, self.states[stop])]
        ends = np.minimum(certain, self.conv_input.shape[1] - self.layer.taps - most)
        if most == 0 or (ends == certain).all():
            history = take_history(self.conv_input, certain, self.layer.taps + most)
        else:
            history = self._padded(self.conv_input, certain, self.layer.taps + most)
        writes.append(("history", rows.slots, history))
        if most:
            writes += [
                (name, rows.slots, self._padded(array, certain, most))
                for name, array in self.records.items()
            ]
        return writes

    @staticmethod
    def _padded(array: mx.array, starts: Any, count: int) -> mx.array:
        """array[b, starts[b] : starts[b] + count], clipped at the end (the rest is not read)."""
        time = np.minimum(starts[:, None] + np.arange(count), array.shape[1] - 1)
        index = mx.array(time.reshape(*time.shape, *(1,) * (array.ndim - 2)))
        wide = mx.broadcast_to(index, (*time.shape, *array.shape[2:]))
        return mx.take_along_axis(array, wide, axis=1)

    def _capture_writes(self) -> list[tuple[str, list[int], mx.array]]:
        writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            states = self.fold_states if is_fold else self.states
            segments = self.rows.fold if is_fold else self.rows.window
            inputs = self.fold_history if is_fold else self.conv_input
            assert segments is not None
            assert inputs is not None
            at = int(segments.stops[stop][number])
            writes.append(("state", [slot], states[stop][number : number + 1]))
            history = inputs[number : number + 1, at : at + self.layer.taps]
            writes.append(("history", [slot], mx.contiguous(history)))
        return writes
