"""What one recurrent layer keeps per slot: named arrays with the slot as first axis.

A slot holds the state, the records of the last window's drafts and the convolution's inputs.
Reading copies out the rows asked for. Writing happens in place, row by row, because nobody else
holds the arrays (whole-row slice updates are ten times faster than a scatter on the CPU); evaluate
what was computed from a pool before writing to it, or the pool is copied whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class SlotArray:
    """Shape and type of what one slot keeps under one name."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Bytes a slot takes for this array."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * self.dtype.size


class Slots:
    """The slots of one layer."""

    def __init__(self, layout: Mapping[str, SlotArray], num_slots: int) -> None:
        self.layout = dict(layout)
        self.num_slots = num_slots
        self.pools = {
            name: mx.zeros((num_slots, *kept.shape), kept.dtype) for name, kept in layout.items()
        }

    def read(self, name: str, slots: mx.array) -> mx.array:
        """Return (rows, ...) of array ``name``, one row for each of ``slots``."""
        return mx.take(self.pools[name], slots, axis=0)

    def write(self, name: str, slots: Sequence[int], rows: mx.array) -> None:
        """Store ``rows``, already evaluated, to ``slots``; the leading extents may be fewer."""
        pool = self.pools[name]
        whole = rows.shape[1:] == pool.shape[1:]
        for row, slot in enumerate(slots):
            if whole:
                pool[slot] = rows[row]
            else:
                pool[slot, : rows.shape[1]] = rows[row]

    def copy(self, source: int, target: int) -> None:
        """Copy everything that ``source`` keeps onto ``target``."""
        for pool in self.pools.values():
            piece = mx.contiguous(pool[source])
            mx.eval(piece)
            pool[target] = piece

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate after writing."""
        return list(self.pools.values())

    @property
    def bytes_per_slot(self) -> int:
        """Bytes one slot takes in this layer."""
        return sum(kept.nbytes for kept in self.layout.values())
