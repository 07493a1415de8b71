"""A gated-delta layer: state, convolution inputs and records in slots."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView
from .gated_delta import DeltaWindow, read_records, take_history
from .segments import Recurrence

WINDOW = 16  # tokens: rows of shorter windows decode, and will be back next round


class DeltaLayer(Layer):
    """A GatedDeltaNet with write on accept: certain tokens enter the state, drafts are recorded."""

    def __init__(
        self,
        layout: Mapping[str, SlotArray],
        num_slots: int,
        taps: int,
        recurrence: Recurrence,
        form: str,
    ) -> None:
        self.slots = Slots(layout, num_slots)
        self.taps = taps
        self.recurrence = recurrence
        self.kind = f"gated delta rule {form}, write on accept"

    def open(self, view: BatchView) -> "OpenDelta":
        return OpenDelta(self, view)

    def pending(self, cache: "OpenDelta") -> list[mx.array]:
        return [array for _, _, array in cache.writes()]

    def store(self, view: BatchView, cache: "OpenDelta") -> list[mx.array]:
        stays = view.batch.width <= WINDOW
        for name, slots, array in cache.writes():
            self.slots.write(name, slots, array, stays=stays and slots is view.slots)
        return self.slots.arrays

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.slots.copy(source, target)
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays


class OpenDelta(DeltaWindow):
    """A DeltaWindow read from slots, with what has to be written back to them."""

    def __init__(self, layer: DeltaLayer, view: BatchView) -> None:
        slots, index = layer.slots, view.slots
        state, history = slots.read("state", index), slots.read("history", index)
        self.fold_history = history
        self.fold_states: list[mx.array] = []
        if view.fresh is not None:
            state = mx.where(view.fresh[:, None, None, None], 0, state)
            history = mx.where(view.fresh[:, None, None], 0, history)
        if view.fold is not None:
            records = read_records(slots, index, view.fold.width)
            _, self.fold_states = view.fold.run(layer.recurrence, records, state)
            state = self.fold_states[-1]
            history = take_history(history, view.folds, layer.taps)
        else:
            history = history[:, : layer.taps]
        super().__init__(history, state, view.window, layer.recurrence)
        self.layer = layer
        self.view = view
        self._writes: list[tuple[str, list[int], mx.array]] | None = None

    def writes(self) -> list[tuple[str, list[int], mx.array]]:
        """(array name, slots, rows) of everything to store, once the module has run."""
        if self._writes is None:
            self._writes = [*self._row_writes(), *self._capture_writes()]
        return self._writes

    def _row_writes(self) -> list[tuple[str, list[int], mx.array]]:
        view, stop = self.view, self.view.certain_stop
        certain = view.window.stops[stop]
        drafts = view.batch.lengths - certain
        most = int(drafts.max())
        assert self.conv_input is not None
        length = self.records["k"].shape[1]
        assert length == view.batch.width, "a layer recorded another window than its row's"
        writes = [("state", view.slots, self.states[stop])]
        ends = np.minimum(certain, self.conv_input.shape[1] - self.layer.taps - most)
        if most == 0 or (ends == certain).all():
            history = take_history(self.conv_input, certain, self.layer.taps + most)
        else:
            history = self._padded(self.conv_input, certain, self.layer.taps + most)
        writes.append(("history", view.slots, history))
        if most:
            writes += [
                (name, view.slots, self._padded(array, certain, most))
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
        for number, is_fold, stop, slot in self.view.captures:
            states = self.fold_states if is_fold else self.states
            segments = self.view.fold if is_fold else self.view.window
            inputs = self.fold_history if is_fold else self.conv_input
            assert segments is not None
            assert inputs is not None
            at = int(segments.stops[stop][number])
            writes.append(("state", [slot], states[stop][number : number + 1]))
            history = inputs[number : number + 1, at : at + self.layer.taps]
            writes.append(("history", [slot], mx.contiguous(history)))
        return writes
