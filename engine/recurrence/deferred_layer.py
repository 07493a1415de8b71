"""A gated-delta layer whose states are written now and then: for CPUs, up to rounding.

Rows that decode together form a *group*: their states as last written, and the tokens since as
records (see ``deferred``). Each round adds its window's records; a fold writes the states every
FOLD_AT records. A group's arrays are newer than the slots': when somebody else wants a slot of
theirs, or other rows come together, they are settled there. Prompt chunks run from folded states.
The rows of larger batches are divided among the lanes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from ..cpu.activation import silu
from ..cpu.lanes import Lanes
from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView
from .chunked import by_chunks
from .deferred import Bools, Records, fold, no_records, run
from .delta_layer import WINDOW
from .history import History
from .rows import RecurrentRows
from .windows import DeltaWindow, DividedWindow, WindowPart

FOLD_AT = 16  # records: a fold costs about as much as reading that many
LANE_VALUES = 1 << 18  # of the states, for each token: from here on dividing the rows is worth it

Writes = list[tuple[str, list[int], mx.array]]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that decode together; ``drafts`` is the column where each row's drafts begin."""

    slots: list[int]
    state: mx.array
    records: Records
    drafts: Int32s

    def accepted(self, counts: Int32s) -> Records:
        """The records with the first ``counts`` of each row's drafts among those that count."""
        ahead = np.arange(self.records.count) - self.drafts[:, None]
        return self.records.with_valid(
            self.records.valid | ((ahead >= 0) & (ahead < counts[:, None]))
        )

    def draft_columns(self, count: int) -> Int32s:
        """The columns of each row's first ``count`` drafts, clipped: (rows, count)."""
        columns = self.drafts[:, None] + np.arange(count, dtype=np.int32)
        return np.minimum(columns, self.records.count - 1)

    def rows(self, slots: Sequence[int]) -> "Group":
        """The rows of ``slots``."""
        index = [self.slots.index(slot) for slot in slots]
        state = mx.take(self.state, mx.array(index), axis=0)
        return Group(list(slots), state, self.records.rows(index), self.drafts[index])


class DeferredLayer(Layer):
    """A GatedDeltaNet with write on accept, whose states are written every FOLD_AT records."""

    kind = "gated delta rule by records, folded now and then; prompts in chunks; write on accept"

    def __init__(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, lanes: Lanes
    ) -> None:
        self.slots = Slots(deferred_layout(module, max_drafts, dtype), num_slots)
        self.taps = module.conv_kernel_size - 1
        self.key_heads = module.num_k_heads
        self.max_drafts = max_drafts
        self.lanes = lanes
        self.groups: list[Group] = []

    def open(self, view: BatchView) -> DividedWindow:
        parts = []
        for stream, numbers in self._divide(view):
            with mx.stream(stream):
                parts.append(WindowPart(stream, numbers, self._open_rows(view.part(numbers))))
        return DividedWindow(parts)

    def pending(self, cache: DividedWindow) -> list[mx.array]:
        return [array for window in _windows(cache) for array in window.pending()]

    def store(self, view: BatchView, cache: DividedWindow) -> list[mx.array]:
        for window in _windows(cache):
            window.store()
        return self.slots.arrays

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.settle([source, target])
        self.slots.copy(source, target)
        return self.slots.arrays

    def lend_slots(self, pairs: Mapping[int, int]) -> list[mx.array]:
        targets = list(pairs.values())
        self.settle(targets, replaced=targets)
        left = dict(pairs)
        for group in list(self.groups):
            mine = [slot for slot in group.slots if slot in left]
            if mine:
                part = group if mine == group.slots else group.rows(mine)
                lent = [left.pop(slot) for slot in mine]
                self.groups.append(Group(lent, part.state, part.records, part.drafts))
        self.slots.lend(left)
        self.slots.lend({s: t for s, t in pairs.items() if s not in left}, ["history"])
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        self.settle()
        return self.slots.arrays

    def take(self, rows: RecurrentRows) -> tuple[mx.array, Records]:
        """States and records before the windows of ``rows``."""
        for group in self.groups:
            if rows.fresh is None and set(rows.slots) <= set(group.slots):
                mine = group if group.slots == rows.slots else group.rows(rows.slots)
                return mine.state, mine.accepted(rows.folds)
        self.settle(rows.slots)
        state = self.slots.read("state", rows.slots)
        if rows.fresh is not None:
            state = mx.where(rows.fresh[:, None, None, None], 0, state)
        count = int(rows.folds.max())
        if not count:
            return state, no_records(state, self.key_heads)
        k, u, log = (self.slots.read(name, rows.slots)[:, :, :count] for name in ("k", "u", "log"))
        return state, Records(k, u, log, np.arange(count) < rows.folds[:, None])

    def settle(self, slots: Sequence[int] | None = None, replaced: Sequence[int] = ()) -> None:
        """Write to the slots what is newer in groups that have one of ``slots``, or in all.

        But for the rows of slots that are ``replaced`` at once.
        """
        asked = [
            group
            for group in self.groups
            if slots is None or not set(group.slots).isdisjoint(slots)
        ]
        if not asked:
            return
        self.groups = [group for group in self.groups if group not in asked]
        for group in asked:
            left = [slot for slot in group.slots if slot not in replaced]
            if left:
                self._put(group if left == group.slots else group.rows(left))

    def _put(self, group: Group) -> None:
        records = group.records
        arrays = {"state": fold(group.state, records)}
        if self.max_drafts:
            columns = group.draft_columns(self.max_drafts)[:, None, :]
            at = mx.broadcast_to(mx.array(columns), (*records.log.shape[:2], self.max_drafts))
            since = mx.take_along_axis(records.log, at, axis=2) - records.last_log()[..., None]
            arrays |= {"log": since}
            for name, array in (("k", records.k), ("u", records.u)):
                index = mx.array(columns[..., None])
                wide = (*array.shape[:2], self.max_drafts, array.shape[-1])
                arrays[name] = mx.take_along_axis(array, mx.broadcast_to(index, wide), axis=2)
        mx.eval(arrays)
        for name, array in arrays.items():
            self.slots.write(name, group.slots, array)
        mx.eval(self.slots.arrays)

    def _open_rows(self, rows: RecurrentRows) -> "OpenRows":
        if rows.width > WINDOW and not rows.has_drafts:
            return OpenChunks(self, rows)
        return OpenRecords(self, rows)

    def _divide(self, view: BatchView) -> list[tuple[mx.Stream, tuple[int, ...]]]:
        """Which rows run on which stream; by slots, so that groups stay together."""
        slots, state = view.slots, self.slots.layout["state"]
        order = sorted(range(len(slots)), key=slots.__getitem__)
        values = len(slots) * view.batch.width * state.nbytes // state.dtype.size
        lanes = self.lanes if values >= LANE_VALUES else self.lanes.first
        return [(stream, tuple(order[low:end])) for stream, low, end in lanes.divide(len(order))]


class OpenRows(DeltaWindow):
    """Rows read from slots or a group, with what has to be stored."""

    def __init__(self, layer: DeferredLayer, rows: RecurrentRows) -> None:
        self.layer = layer
        self.rows = rows
        self.past = History(layer.slots, rows, layer.taps)
        self.history = self.past.before
        self.state, self.records = layer.take(rows)
        self.captured: Writes = self._captured_in_fold()

    def mix(self, module: Any, inputs: mx.array) -> mx.array:
        """By taps: several times faster than a grouped convolution on a CPU."""
        weight, width = module.conv1d.weight, inputs.shape[1] - self.layer.taps
        taps = range(self.layer.taps + 1)
        mixed: mx.array = sum(inputs[:, tap : tap + width] * weight[:, tap, 0] for tap in taps)
        return silu(mixed + module.conv1d.bias if "bias" in module.conv1d else mixed)

    def pending(self) -> list[mx.array]:
        """Arrays to evaluate before ``store``."""
        raise NotImplementedError

    def store(self) -> None:
        """Keep what the round may keep."""
        raise NotImplementedError

    def _captured_in_fold(self) -> Writes:
        """States and histories of captures among the tokens that the last round's verdict added."""
        captured: Writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            if is_fold:
                assert self.rows.fold is not None
                tokens = int(self.rows.fold.stops[stop][number])
                short = int(self.rows.folds[number]) - tokens
                captured.append(("state", [slot], self._state_before(number, short)))
                history = self.past.at(self.history, number, tokens, in_fold=True)
                captured.append(("history", [slot], history))
        return captured

    def _state_before(self, number: int, short: int) -> mx.array:
        """Row ``number``'s state with all records but the last ``short``, (1, ...)."""
        mine = self.records.rows([number])
        places = np.cumsum(mine.valid, axis=1)
        valid = mine.valid & (places <= places[:, -1:] - short)
        return fold(self.state[number : number + 1], mine.with_valid(valid))

    def _history_at(self, number: int, stop: int) -> tuple[int, mx.array]:
        """Tokens from the window's start to a stop of row ``number``, and the history there."""
        assert self.conv_input is not None
        tokens = int(self.rows.window.stops[stop][number])
        return tokens, self.past.at(self.conv_input, number, tokens, in_fold=False)


class OpenRecords(OpenRows):
    """Windows of a few tokens, which become records."""

    def __init__(self, layer: DeferredLayer, rows: RecurrentRows) -> None:
        super().__init__(layer, rows)
        if self.records.count >= FOLD_AT:
            self.state = fold(self.state, self.records)
            self.records = no_records(self.state, layer.key_heads)
        self.made = no_records(self.state, layer.key_heads)
        self._kept: tuple[Group, Writes] | None = None

    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Read the state and all records; (rows, width, value heads, value dim)."""
        read, self.made = run(inputs, self.state, self.records)
        return read

    def pending(self) -> list[mx.array]:
        """The group's arrays, and what is written to slots."""
        group, writes = self._keep()
        records = group.records
        arrays = [group.state, records.k, records.u, records.log]
        return arrays + [array for _, _, array in writes]

    def store(self) -> None:
        """Make the rows a group, and write their captures."""
        layer, slots = self.layer, self.rows.slots
        group, writes = self._keep()
        layer.settle(slots, replaced=slots)
        layer.settle([slot for _, targets, _ in writes for slot in targets])
        layer.groups.append(group)
        for name, targets, array in writes:
            layer.slots.write(name, targets, array, stays=targets is slots)

    def _keep(self) -> tuple[Group, Writes]:
        if self._kept is None:
            certain = self.rows.window.stops[self.rows.certain_stop]
            group = Group(
                self.rows.slots,
                self.state,
                self.records.then(self._made_until(certain)),
                self.records.count + certain,
            )
            assert self.conv_input is not None
            history = self.past.after(self.conv_input)
            writes = [("history", self.rows.slots, history), *self.captured, *self._captured()]
            self._kept = group, writes
        return self._kept

    def _made_until(self, ends: Int32s) -> Records:
        valid: Bools = np.arange(self.made.count) < ends[:, None]
        return self.made.with_valid(valid)

    def _captured(self) -> Writes:
        captured: Writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            if not is_fold:
                tokens, history = self._history_at(number, stop)
                made = self._made_until(np.full(len(self.rows.slots), tokens, np.int32))
                records = self.records.then(made).rows([number])
                captured.append(("state", [slot], fold(self.state[number : number + 1], records)))
                captured.append(("history", [slot], history))
        return captured


class OpenChunks(OpenRows):
    """Prompt chunks, which are written to the states at once."""

    def __init__(self, layer: DeferredLayer, rows: RecurrentRows) -> None:
        super().__init__(layer, rows)
        self.states: list[mx.array] = []  # at every stop of the window
        self._writes: Writes | None = None

    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Run the segments of the window; (rows, width, value heads, value dim)."""
        start = fold(self.state, self.records)
        read, self.states = self.rows.window.run(by_chunks, inputs, start)
        return read

    def pending(self) -> list[mx.array]:
        """What is written to slots."""
        return [array for _, _, array in self._keep()]

    def store(self) -> None:
        """Write states, histories and captures."""
        slots, writes = self.rows.slots, self._keep()
        self.layer.settle(slots, replaced=slots)
        self.layer.settle([slot for _, targets, _ in writes for slot in targets])
        for name, targets, array in writes:
            self.layer.slots.write(name, targets, array)

    def _keep(self) -> Writes:
        if self._writes is None:
            assert self.conv_input is not None
            slots = self.rows.slots
            writes = [("state", slots, self.states[-1])]
            writes.append(("history", slots, self.past.after(self.conv_input)))
            writes += self.captured
            for number, is_fold, stop, slot in self.rows.captures:
                if not is_fold:
                    _, history = self._history_at(number, stop)
                    writes.append(("state", [slot], self.states[stop][number : number + 1]))
                    writes.append(("history", [slot], history))
            self._writes = writes
        return self._writes


def _windows(cache: DividedWindow) -> list[OpenRows]:
    return [part.window for part in cache.parts if isinstance(part.window, OpenRows)]


def deferred_layout(module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
    """What a slot keeps of ``module``: state, convolution inputs, and ``max_drafts`` records."""
    taps = module.conv_kernel_size - 1
    state = (module.num_v_heads, module.head_v_dim, module.head_k_dim)
    layout = {
        "state": SlotArray(state, mx.float32),
        "history": SlotArray((taps + max_drafts, module.conv_dim), dtype),
    }
    if max_drafts:
        layout |= {
            "k": SlotArray((module.num_k_heads, max_drafts, module.head_k_dim), mx.float32),
            "u": SlotArray((module.num_v_heads, max_drafts, module.head_v_dim), mx.float32),
            "log": SlotArray((module.num_v_heads, max_drafts), mx.float32),
        }
    return layout
