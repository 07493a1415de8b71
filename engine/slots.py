"""What one recurrent layer keeps per slot: named arrays with the slot as first axis.

A slot holds the state, the records of the last window's drafts and the convolution's inputs.
Reading copies out the rows asked for. Writing happens in place, row by row, because nobody else
holds the arrays (whole-row slice updates are ten times faster than a scatter on the CPU); evaluate
what was computed from a pool before writing to it, or the pool is copied whole.

Rows that decode round after round stay *resident*: what a round computed for them is the next
round's input as it is, and goes to the pool only when somebody else asks for a slot of theirs.
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


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Rows of one array that are newer than the pool's, and lie together."""

    places: Mapping[int, int]  # slot: row
    rows: mx.array

    def read(self, slots: Sequence[int]) -> mx.array:
        """Return the rows of ``slots``, all of them resident."""
        order = [self.places[slot] for slot in slots]
        if order == list(range(self.rows.shape[0])):
            return self.rows
        return mx.take(self.rows, mx.array(order), axis=0)


class Slots:
    """The slots of one layer."""

    def __init__(self, layout: Mapping[str, SlotArray], num_slots: int) -> None:
        self.layout = dict(layout)
        self.num_slots = num_slots
        self._pools = {
            name: mx.zeros((num_slots, *kept.shape), kept.dtype) for name, kept in layout.items()
        }
        self._resident: dict[str, list[Resident]] = {name: [] for name in layout}
        # a launch for each row would take a GPU's host longer
        self._scatters = mx.default_device() == mx.Device(mx.gpu)

    @property
    def pools(self) -> dict[str, mx.array]:
        """The arrays with everything in them."""
        for name in self._pools:
            self._settle(name)
        return self._pools

    def read(self, name: str, slots: Sequence[int]) -> mx.array:
        """Return (rows, ...) of array ``name``, one row for each of ``slots``.

        Where the leading extent of what was written last is fewer, that may be all of it.
        """
        resident = self.make_ready(name, slots)
        if resident is not None:
            return resident.read(slots)
        return mx.take(self._pools[name], mx.array(list(slots)), axis=0)

    def make_ready(self, name: str, slots: Sequence[int]) -> Resident | None:
        """Return what ``slots`` are read from if they are resident together, else settle them.

        Before several are read, each is made ready: no pool may be written while one is read.
        """
        for resident in self._resident[name]:
            if all(slot in resident.places for slot in slots):
                return resident
        self._settle(name, slots)
        return None

    def write(
        self, name: str, slots: Sequence[int], rows: mx.array, *, stays: bool = False
    ) -> None:
        """Store ``rows``, already evaluated, to ``slots``; the leading extents may be fewer.

        ``stays``: these very slots are likely to be read next, so the rows stay resident.
        """
        stays = stays and len(set(slots)) == len(slots)
        self._settle(name, slots, replaced=slots if stays else ())
        if stays:
            places = {slot: row for row, slot in enumerate(slots)}
            self._resident[name].append(Resident(places, rows))
        else:
            self._put(name, slots, rows)

    def copy(self, source: int, target: int) -> None:
        """Copy everything that ``source`` keeps onto ``target``."""
        for pool in self.pools.values():
            piece = mx.contiguous(pool[source])
            mx.eval(piece)
            pool[target] = piece

    def lend(self, pairs: Mapping[int, int], names: Sequence[str] | None = None) -> None:
        """Let each target begin with what its source keeps: ``pairs`` are source: target.

        Rows that are resident are not copied; the source keeps them.
        """
        for name in self.layout if names is None else names:
            targets = list(pairs.values())
            self._settle(name, targets, replaced=targets)
            left = dict(pairs)
            for resident in list(self._resident[name]):
                mine = [slot for slot in resident.places if slot in left]
                if mine:
                    places = {left.pop(slot): resident.places[slot] for slot in mine}
                    self._resident[name].append(Resident(places, resident.rows))
            if left:
                rows = mx.take(self._pools[name], mx.array(list(left)), axis=0)
                mx.eval(rows)
                self._put(name, list(left.values()), rows)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate after writing."""
        return list(self._pools.values())

    @property
    def bytes_per_slot(self) -> int:
        """Bytes one slot takes in this layer."""
        return sum(kept.nbytes for kept in self.layout.values())

    def _settle(
        self, name: str, slots: Sequence[int] | None = None, replaced: Sequence[int] = ()
    ) -> None:
        """Put resident rows into the pool: those that lie with one of ``slots``, or all.

        But for those of slots that are ``replaced`` at once.
        """
        asked = [
            resident
            for resident in self._resident[name]
            if slots is None or not resident.places.keys().isdisjoint(slots)
        ]
        if not asked:
            return
        for resident in asked:
            for slot, row in resident.places.items():
                if slot not in replaced:
                    self._put(name, [slot], resident.rows[row : row + 1])
        mx.eval(self._pools[name])
        self._resident[name] = [one for one in self._resident[name] if one not in asked]

    def _put(self, name: str, slots: Sequence[int], rows: mx.array) -> None:
        pool = self._pools[name]
        whole = rows.shape[1:] == pool.shape[1:]
        if whole and self._scatters and len(slots) > 1:
            pool[mx.array(list(slots))] = rows
            return
        for row, slot in enumerate(slots):
            if whole:
                pool[slot] = rows[row]
            else:
                pool[slot, : rows.shape[1]] = rows[row]
