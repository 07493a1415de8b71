"""Any recurrent layer that keeps its state in mlx-lm's ArraysCache, by the generic method."""

from collections.abc import Mapping

import mlx.core as mx

from ..layers import Layer
from ..slots import SlotArray, Slots
from ..view import BatchView


class ArraysLayer(Layer):
    """Any other module that keeps its state in mlx-lm's ArraysCache; windows without drafts."""

    kind = "arrays of the module's own, written at once"

    def __init__(self, layout: Mapping[str, SlotArray], num_slots: int) -> None:
        self.slots = Slots(layout, num_slots)

    def open(self, view: BatchView) -> "OpenArrays":
        return OpenArrays(self.slots, view)

    def pending(self, cache: "OpenArrays") -> list[mx.array]:
        return cache.arrays

    def store(self, view: BatchView, cache: "OpenArrays") -> list[mx.array]:
        for name, array in zip(self.slots.layout, cache.arrays, strict=True):
            self.slots.write(name, view.slots, array)
        return self.slots.arrays

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        self.slots.copy(source, target)
        return self.slots.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.slots.arrays


class OpenArrays:
    """Duck-typed ArraysCache over slots: the arrays are replaced, never mutated."""

    left_padding = None

    def __init__(self, slots: Slots, view: BatchView) -> None:
        self.arrays = [slots.read(name, view.slot_index) for name in slots.layout]
        if view.fresh is not None:
            self.arrays = [
                mx.where(view.fresh.reshape(-1, *(1,) * (array.ndim - 1)), 0, array)
                for array in self.arrays
            ]
        ragged = view.batch.is_ragged
        self.lengths = mx.array(view.batch.lengths) if ragged else None

    def __getitem__(self, index: int) -> mx.array:
        return self.arrays[index]

    def __setitem__(self, index: int, array: mx.array) -> None:
        self.arrays[index] = array

    @property
    def cache(self) -> list[mx.array]:
        """The arrays, under the name that some of mlx-lm's modules use."""
        return self.arrays

    def advance(self, length: int) -> None:
        """Nothing to do: a cache serves one window."""

    def make_mask(self, length: int) -> mx.array | None:
        """(rows, length), False at padding; None without any."""
        return None if self.lengths is None else mx.arange(length) < self.lengths[:, None]
