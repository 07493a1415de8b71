"""A gated-delta layer: state, convolution inputs and records of drafts in slots."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView
from .forms import RecurrenceForm
from .history import History, take_padded
from .rows import RecurrentRows
from .windows import DeltaWindow

WINDOW = 16  # tokens: rows of shorter windows decode, and will be back next round
RECORDS = ("k", "v", "g", "beta")


class DeltaLayer(Layer):
    """A GatedDeltaNet with write on accept: certain tokens enter the state, drafts are recorded.

    What is recorded are the inputs of the recurrence, so that accepting some drafts is a matter of
    folding their records in. With the loop form the outputs equal mlx-lm's bitwise.
    """

    def __init__(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, form: RecurrenceForm
    ) -> None:
        self.slots = Slots(slot_layout(module, max_drafts, dtype), num_slots)
        self.taps = module.conv_kernel_size - 1
        self.recurrence = form.run
        self.kind = f"gated delta rule {form.name}, write on accept"

    def open(self, view: BatchView) -> "OpenDelta":
        return OpenDelta(self, view.recurrent)

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

    def lend_slots(self, pairs: Mapping[int, int]) -> list[mx.array]:
        self.slots.lend(pairs)
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays


class OpenDelta(DeltaWindow):
    """A window read from slots, with what has to be written back to them."""

    def __init__(self, layer: DeltaLayer, rows: RecurrentRows) -> None:
        self.layer = layer
        self.rows = rows
        slots = layer.slots
        self.past = History(slots, rows, layer.taps)
        self.history = self.past.before
        state = slots.read("state", rows.slots)
        if rows.fresh is not None:
            state = mx.where(rows.fresh[:, None, None, None], 0, state)
        self.fold_states: list[mx.array] = []
        if rows.fold is not None:
            records = read_records(slots, rows.slots, rows.fold.width)
            _, self.fold_states = rows.fold.run(layer.recurrence, records, state)
            state = self.fold_states[-1]
        self.state = state
        self.states: list[mx.array] = []  # at every stop of the window
        self.records: dict[str, mx.array] = {}
        self._writes: list[tuple[str, list[int], mx.array]] | None = None

    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Run the segments of the window; (rows, width, value heads, value dim)."""
        read, self.states = self.rows.window.run(self.layer.recurrence, inputs, self.state)
        self.records = dict(zip(RECORDS, inputs[1:], strict=True))
        return read

    def writes(self) -> list[tuple[str, list[int], mx.array]]:
        """(array name, slots, rows) of everything to store, once the module has run."""
        if self._writes is None:
            self._writes = [*self._row_writes(), *self._capture_writes()]
        return self._writes

    def _row_writes(self) -> list[tuple[str, list[int], mx.array]]:
        rows, stop = self.rows, self.rows.certain_stop
        certain = rows.window.stops[stop]
        most = int((rows.lengths - certain).max())
        assert self.conv_input is not None
        length = self.records["k"].shape[1]
        assert length == rows.width, "a layer recorded another window than its row's"
        writes = [
            ("state", rows.slots, self.states[stop]),
            ("history", rows.slots, self.past.after(self.conv_input)),
        ]
        if most:
            writes += [
                (name, rows.slots, take_padded(array, certain, most))
                for name, array in self.records.items()
            ]
        return writes

    def _capture_writes(self) -> list[tuple[str, list[int], mx.array]]:
        writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            states = self.fold_states if is_fold else self.states
            segments = self.rows.fold if is_fold else self.rows.window
            assert segments is not None
            assert self.conv_input is not None
            tokens = int(segments.stops[stop][number])
            history = self.past.at(self.conv_input, number, tokens, in_fold=is_fold)
            writes.append(("state", [slot], states[stop][number : number + 1]))
            writes.append(("history", [slot], history))
        return writes


def state_layout(module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
    """What any slot keeps of ``module``: state, and inputs of the convolution."""
    taps = module.conv_kernel_size - 1
    state = (module.num_v_heads, module.head_v_dim, module.head_k_dim)
    return {
        "state": SlotArray(state, mx.float32),
        "history": SlotArray((taps + max_drafts, module.conv_dim), dtype),
    }


def slot_layout(module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
    """What a slot keeps of ``module``: state, convolution inputs, and ``max_drafts`` records."""
    layout = state_layout(module, max_drafts, dtype)
    if max_drafts:
        layout |= {
            "k": SlotArray((max_drafts, module.num_k_heads, module.head_k_dim), dtype),
            "v": SlotArray((max_drafts, module.num_v_heads, module.head_v_dim), dtype),
            "g": SlotArray((max_drafts, module.num_v_heads), mx.float32),
            "beta": SlotArray((max_drafts, module.num_v_heads), dtype),
        }
    return layout


def read_records(slots: Slots, index: Sequence[int], count: int) -> Sequence[mx.array]:
    """The first ``count`` recorded inputs of slots ``index``, as a recurrence takes them."""
    k, v, g, beta = (slots.read(name, index)[:, :count] for name in RECORDS)
    return k, k, v, g, beta  # the outputs of a fold are not wanted: any q will do
