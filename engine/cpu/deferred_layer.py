"""A gated-delta layer whose states are written now and then: for CPUs, up to rounding.

Rows that decode together form a *group*: their states as last written, and the tokens since as
records (see ``recurrence.deferred``). Each round adds its window's records; a fold writes the
states every FOLD_AT records. A group's arrays are newer than the slots': when somebody else wants a
slot of theirs, or other rows come together, they are settled there. Prompt chunks run from folded
states. The rows of larger batches are divided among the lanes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..layers import Layer
from ..recurrence.deferred import Records, no_records
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
SPARE_GROUPS = 4  # groups beyond one a lane; more are of rows that have ended, and are settled


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
        """States and records before the windows of ``rows``: a group's, or the slots'."""
        group = self._group_of(rows)
        if group is not None:
            mine = group if group.slots == rows.slots else group.rows(rows.slots)
            return mine.state, mine.accepted(rows.folds)
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
        for group in list(self.groups):
            if slots is not None and set(group.slots).isdisjoint(slots):
                continue
            left = [slot for slot in group.slots if slot not in replaced and slot != NOBODY]
            if left:
                self._put(group if left == group.slots else group.rows(left))
            self.groups.remove(group)  # now that the slots hold it

    def _put(self, group: Group) -> None:
        arrays = group.settled(self.max_drafts)
        mx.eval(arrays)
        for name, array in arrays.items():
            self.slots.write(name, group.slots, array)
        mx.eval(self.slots.arrays)

    def _make_ready(self, parts: Sequence[RecurrentRows]) -> None:
        """Settle all that the parts are going to read from the slots, before any of them does.

        A pool that is written while a reading of it is held is copied whole. What slots of fresh
        rows held is of nobody: it is let go.
        """
        fresh = [row.slot for rows in parts for row in rows.rows if row.start == 0]
        self.groups = [kept for group in self.groups if (kept := group.without(fresh)) is not None]
        for rows in parts:
            if self._group_of(rows) is None:
                self.settle(rows.slots)
            self.slots.make_ready("history", rows.slots)

    def _group_of(self, rows: RecurrentRows) -> Group | None:
        """The group that all of ``rows`` are in."""
        wanted = set(rows.slots)
        return next((group for group in self.groups if wanted <= set(group.slots)), None)

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
