"""Any recurrent layer that keeps its state in mlx-lm's ArraysCache, by the generic method."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView


class ArraysLayer(Layer):
    """Any other module that keeps its state in mlx-lm's ArraysCache.

    Its state is seen before and after a window only: windows end where one is to be captured. It is
    written where the whole window is committed; otherwise the slot keeps the one before, from which
    the accepted part runs again. So it always stands at the next window's start, and folds mean
    nothing here.
    """

    kind = "arrays of the module's own, accepted drafts run again after a rejection"

    def __init__(self, kept: Sequence[SlotArray | None], num_slots: int) -> None:
        self.names = [None if one is None else str(number) for number, one in enumerate(kept)]
        layout = {str(number): one for number, one in enumerate(kept) if one is not None}
        self.slots = Slots(layout, num_slots)

    def open(self, view: BatchView) -> "OpenArrays":
        return OpenArrays(self, view)

    def pending(self, cache: "OpenArrays") -> list[mx.array]:
        return [array for array in [*cache.before, *cache.cache] if array is not None]

    def store(self, view: BatchView, cache: "OpenArrays") -> list[mx.array]:
        for name, before, after in zip(self.names, cache.before, cache.cache, strict=True):
            if name is None:
                continue
            for place, (row, window) in enumerate(zip(view.rows, view.batch.windows, strict=True)):
                if view.kept[place] == window.length:
                    self.slots.write(name, [view.slots[place]], after[place : place + 1])
                for capture in row.captures:
                    at_end = capture.position == row.start + window.length
                    assert at_end or capture.position == row.start, "no such state is seen here"
                    array = after if at_end else before
                    self.slots.write(name, [capture.slot], array[place : place + 1])
        return self.slots.arrays

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.slots.copy(source, target)
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays


class OpenArrays(ArraysCache):
    """An ArraysCache over slots: the arrays are replaced, never mutated.

    Sequences that begin have no arrays, as in mlx-lm; beside others that go on, they have zeros.
    """

    cache: Any  # list of arrays, None where the module keeps nothing
    lengths: Any  # (rows,) of the windows, None if all are equal

    def __init__(self, layer: ArraysLayer, view: BatchView) -> None:
        super().__init__(len(layer.names))
        if any(row.start for row in view.rows):
            self.cache = [
                None if name is None else self._read(layer.slots, name, view)
                for name in layer.names
            ]
        self.before = list(self.cache)
        self.lengths = mx.array(view.batch.lengths) if view.batch.is_ragged else None

    @staticmethod
    def _read(slots: Slots, name: str, view: BatchView) -> mx.array:
        array = slots.read(name, view.slots)
        if view.recurrent.fresh is None:
            return array
        return mx.where(view.recurrent.fresh.reshape(-1, *(1,) * (array.ndim - 1)), 0, array)

    def advance(self, length: int) -> None:
        """Nothing to do: a cache serves one window."""
