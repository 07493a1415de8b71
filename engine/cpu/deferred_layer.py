"""A gated-delta layer whose states are written now and then: for CPUs, up to rounding.

Rows that decode together form a *group*: their states as last written, and the tokens since as
records (see ``recurrence.deferred``). Each round adds its window's records; a fold writes the
states every FOLD_AT records. A group's arrays are newer than the slots'. Where other rows come
together they are joined from their groups. A row that leaves stays behind, for it has probably
ended; it is settled in its slot when somebody copies that, or when many have. Prompt chunks run
from folded states. The rows of larger batches are divided among the lanes.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from ..layers import Layer
from ..recurrence.deferred import Records, join, no_records
from ..recurrence.delta_layer import WINDOW, state_layout
from ..recurrence.rows import RecurrentRows
from ..recurrence.windows import DividedWindow, WindowPart
from ..slots import SlotArray, Slots
from ..view import BatchView
from .group import NOBODY, Group
from .lanes import Lanes
from .open_rows import OpenChunks, OpenRecords, OpenRows
from .products import pays_apart

LANE_VALUES = 1 << 18  # of the states, for each token: from here on dividing the rows is worth it
SPARE_GROUPS = 8  # groups beyond one a lane; more are of rows that have ended, and are settled


class DeferredLayer(Layer):
    """A GatedDeltaNet with write on accept, whose states are written every FOLD_AT records."""

    kind = "gated delta rule by records, folded now and then; prompts in chunks; write on accept"

    def __init__(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, lanes: Lanes
    ) -> None:
        self.slots = Slots(deferred_layout(module, max_drafts, dtype), num_slots)
        self.taps = module.conv_kernel_size - 1
        columns = range(self.taps + 1)
        self.tap_weights = [mx.contiguous(module.conv1d.weight[:, tap, 0]) for tap in columns]
        self.decay = mx.exp(module.A_log.astype(mx.float32))
        self.key_heads = module.num_k_heads
        self.max_drafts = max_drafts
        self.lanes = lanes
        self.groups: list[Group] = []
        self._to_evaluate: list[mx.array] = []  # rows that stay, apart from those that left

    def open(self, view: BatchView) -> DividedWindow:
        divided = [(stream, view.part(numbers), numbers) for stream, numbers in self._divide(view)]
        self._make_ready([rows for _, rows, _ in divided])
        parts = []
        for stream, rows, numbers in divided:
            with mx.stream(stream):
                parts.append(WindowPart(stream, numbers, self._open_rows(rows)))
        apart = len(parts) > 1 and pays_apart(view.batch.size * view.batch.width, self.lanes)
        return DividedWindow(parts, self.lanes.alone if apart else None)

    def pending(self, cache: DividedWindow) -> list[mx.array]:
        return [array for window in _windows(cache) for array in window.pending()]

    def store(self, view: BatchView, cache: DividedWindow) -> list[mx.array]:
        for window in _windows(cache):
            window.store()
        for group in self.groups[: -(len(self.lanes.streams) + SPARE_GROUPS)]:
            self.settle(group.slots)
        moved, self._to_evaluate = self._to_evaluate, []
        return self.slots.arrays + moved

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.settle([source, target])
        self.slots.copy(source, target)
        return self.slots.arrays

    def lend_slots(self, pairs: Mapping[int, int]) -> list[mx.array]:
        targets = list(pairs.values())
        self.leave(targets)
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
        """States and records before the windows of ``rows``: a group's, or the slots'."""
        places = {slot: group for group in self.groups for slot in group.slots}
        states, records = [], []
        first = 0
        for group, part in groupby(rows.slots, places.get):
            slots = list(part)
            folds = rows.folds[first : (first := first + len(slots))]
            if group is None:
                state, made = self._read(slots, folds)
            else:
                mine = group if group.slots == slots else group.rows(slots)
                state, made = mine.state, mine.accepted(folds)
            states.append(state)
            records.append(made)
        state = states[0] if len(states) == 1 else mx.concatenate(states)
        if rows.fresh is not None:
            state = mx.where(rows.fresh[:, None, None, None], 0, state)
        return state, join(records)

    def settle(self, slots: Sequence[int] | None = None) -> None:
        """Write to the slots what is newer in groups that have one of ``slots``, or in all."""
        for group in list(self.groups):
            if slots is not None and set(group.slots).isdisjoint(slots):
                continue
            left = [slot for slot in group.slots if slot != NOBODY]
            if left:
                self._put(group if left == group.slots else group.rows(left))
            self.groups.remove(group)  # now that the slots hold it

    def leave(self, slots: Sequence[int]) -> None:
        """What groups hold of ``slots`` is nobody's any more. Few rows that stay lie apart then."""
        groups: list[Group] = []
        for group in self.groups:
            left = group.without(slots)
            if left is not None and left.is_sparse:
                left = left.rows([slot for slot in left.slots if slot != NOBODY])
                self._to_evaluate += left.arrays
            if left is not None:
                groups.append(left)
        self.groups = groups

    def _read(self, slots: Sequence[int], folds: Int32s) -> tuple[mx.array, Records]:
        """States and records of ``slots`` that are in no group."""
        state, count = self.slots.read("state", slots), int(folds.max())
        if not count:
            return state, no_records(state, self.key_heads)
        k, u, log = (self.slots.read(name, slots)[:, :, :count] for name in ("k", "u", "log"))
        return state, Records(k, u, log, np.arange(count) < folds[:, None])

    def _put(self, group: Group) -> None:
        arrays = group.settled(self.max_drafts)
        mx.eval(arrays)
        for name, array in arrays.items():
            self.slots.write(name, group.slots, array)
        mx.eval(self.slots.arrays)

    def _make_ready(self, parts: Sequence[RecurrentRows]) -> None:
        """Let go what slots of fresh rows held, and let no part's reading write to a pool."""
        self.leave([row.slot or 0 for rows in parts for row in rows.rows if row.start == 0])
        for rows in parts:
            self.slots.make_ready("history", rows.slots)

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


def _windows(cache: DividedWindow) -> list[OpenRows]:
    return [part.window for part in cache.parts if isinstance(part.window, OpenRows)]


def deferred_layout(module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
    """What a slot keeps of ``module``: state, convolution inputs, and ``max_drafts`` records."""
    layout = state_layout(module, max_drafts, dtype)
    if max_drafts:
        layout |= {
            "k": SlotArray((module.num_k_heads, max_drafts, module.head_k_dim), mx.float32),
            "u": SlotArray((module.num_v_heads, max_drafts, module.head_v_dim), mx.float32),
            "log": SlotArray((module.num_v_heads, max_drafts), mx.float32),
        }
    return layout
