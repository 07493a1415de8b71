"""What one recurrent layer keeps per slot: named arrays with the slot as first axis.

A slot holds the state, the records of the last window's drafts and the convolution's inputs.
Reading copies out the rows asked for. Writing happens in place, row by row, because nobody else
holds the arrays (whole-row slice updates are ten times faster than a scatter on the CPU); evaluate
what was computed from a pool before writing to it, or the pool is copied whole.

Rows that decode round after round stay *resident*: what a round computed for them is the next
round's input as it is. A row that leaves stays behind; most that do have ended, and nobody is going
to ask for them. Only what has stayed behind for long goes to the pool.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import mlx.core as mx

MOST_RESIDENT = 12  # pieces of one array that are not in the pool


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

    def without(self, slots: Collection[int]) -> "Resident | None":
        """What stays of it when ``slots`` are another's; None if nothing does."""
        if self.places.keys().isdisjoint(slots):
            return self
        places = {slot: row for slot, row in self.places.items() if slot not in slots}
        return Resident(places, self.rows) if places else None


class Slots:
    """The slots of one layer."""

    def __init__(self, layout: Mapping[str, SlotArray], num_slots: int) -> None:
        self.layout = dict(layout)
        self.num_slots = num_slots
        self._pools = {
            name: mx.zeros((num_slots, *kept.shape), kept.dtype) for name, kept in layout.items()
        }
        self._resident: dict[str, list[Resident]] = {name: [] for name in layout}
        # a launch for each row would take a GPU's host longer, and so would waiting for it: what it
        # runs next runs after that
        self._scatters = mx.default_device() == mx.Device(mx.gpu)
        self._evaluate: Callable[..., None] = mx.async_eval if self._scatters else mx.eval

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
        self.make_ready(name, slots)
        found = {slot: one for one in self._resident[name] for slot in slots if slot in one.places}
        parts = [
            mx.take(self._pools[name], mx.array(part), axis=0) if one is None else one.read(part)
            for one, part in ((one, list(part)) for one, part in groupby(slots, found.get))
        ]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def make_ready(self, name: str, slots: Sequence[int]) -> None:
        """Let ``slots`` be read without writing to the pool: rows that cannot be joined go there.

        Before several are read, each is made ready: no pool may be written while one is read.
        """
        asked = [one for one in self._resident[name] if not one.places.keys().isdisjoint(slots)]
        if len(asked) > 1 or (asked and not asked[0].places.keys() >= set(slots)):
            whole = self._pools[name].shape[1:]
            if any(resident.rows.shape[1:] != whole for resident in asked):
                self._settle(name, slots)

    def write(
        self, name: str, slots: Sequence[int], rows: mx.array, *, stays: bool = False
    ) -> None:
        """Store ``rows``, already evaluated, to ``slots``; the leading extents may be fewer.

        ``stays``: these very slots are likely to be read next, so the rows stay resident.
        """
        if not stays or len(set(slots)) < len(slots):
            self._settle(name, slots)
            self._put(name, slots, rows)
            return
        stay = [left for one in self._resident[name] if (left := one.without(slots)) is not None]
        stay.append(Resident({slot: row for row, slot in enumerate(slots)}, rows))
        self._resident[name] = stay
        if len(stay) > MOST_RESIDENT:
            self._settle(name, list(stay[0].places))

    def copy(self, source: int, target: int) -> None:
        """Copy everything that ``source`` keeps onto ``target``."""
        for pool in self.pools.values():
            piece = mx.contiguous(pool[source])
            self._evaluate(piece)
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
                self._evaluate(rows)
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
            left = [slot for slot in resident.places if slot not in replaced]
            if left and self._scatters:
                self._put(name, left, resident.read(left))
                continue
            for slot in left:
                row = resident.places[slot]
                self._put(name, [slot], resident.rows[row : row + 1])
        self._evaluate(self._pools[name])
        self._resident[name] = [one for one in self._resident[name] if one not in asked]

    def _put(self, name: str, slots: Sequence[int], rows: mx.array) -> None:
        pool = self._pools[name]
        whole = rows.shape[1:] == pool.shape[1:]
        if self._scatters and len(slots) > 1:
            places = mx.array(list(slots))
            if whole:
                pool[places] = rows
            else:
                pool[places, : rows.shape[1]] = rows
            return
        for row, slot in enumerate(slots):
            if whole:
                pool[slot] = rows[row]
            else:
                pool[slot, : rows.shape[1]] = rows[row]
