"""Reference-counted ids: K/V blocks and state slots.

An id is in exactly one of three states, after every call:
    free        nobody holds it, its content means nothing
    cached      nobody holds it, but the prefix index keeps its content
    referenced  somebody holds it
Id 0 is scratch: it is never handed out and belongs to none of the three.

The lowest free id is taken first: what ended last leaves room for what begins next, in memory that
was in use a moment ago.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush

from .journal import Journal


class OutOfIds(Exception):
    """The pool has fewer free ids than asked for."""


class NotHeld(Exception):
    """An id was shared or released that nobody holds."""


class IdPool:
    """Hands out ids 1 .. size-1."""

    noun = "id"

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(1, size))  # a heap
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._kept = bytearray(size)
        self.holders = [0] * size
        self.journal: Journal | None = None

    @property
    def num_total(self) -> int:
        """All ids but scratch."""
        return max(0, self.size - 1)

    @property
    def num_free(self) -> int:
        """Ids that can be taken at once."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Ids that can be taken once the index forgets them."""
        return len(self._cached)

    @property
    def free_ids(self) -> frozenset[int]:
        """The free ids."""
        return frozenset(self._free)

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """The cached ids, the least recently used first."""
        return tuple(self._cached)

    def take(self, count: int) -> list[int]:
        """Take ``count`` ids, each with one holder; all of them, or OutOfIds and none."""
        if count > len(self._free):
            raise OutOfIds(f"{count} {self.noun}s wanted, {len(self._free)} free")
        taken = [heappop(self._free) for _ in range(count)]
        for id_ in taken:
            self.holders[id_] = 1
        self._note(taken, "taken")
        return taken

    def share(self, ids: Iterable[int]) -> None:
        """Add one holder to each id, which must be referenced or cached."""
        for id_ in ids:
            if self.holders[id_] == 0:
                if id_ not in self._cached:
                    raise NotHeld(f"{self.noun} {id_} is free: nobody can share it")
                del self._cached[id_]
            self.holders[id_] += 1
            if self.journal is not None:
                self._note((id_,), "shared")

    def release(self, ids: Iterable[int]) -> None:
        """Drop one holder from each id, in this order; the last holder frees or caches it."""
        for id_ in ids:
            count = self.holders[id_] - 1
            if count < 0:
                raise NotHeld(f"{self.noun} {id_} is released once more than it was taken")
            self.holders[id_] = count
            if self.journal is not None:
                self._note((id_,), "released")
            if count == 0:
                if self._kept[id_]:
                    self._cached[id_] = None
                else:
                    heappush(self._free, id_)

    def keep(self, id_: int) -> None:
        """Cache a held id, instead of freeing it, once nobody holds it any more."""
        if self.holders[id_] == 0:
            raise NotHeld(f"{self.noun} {id_} is not held: its content means nothing")
        self._kept[id_] = 1

    def forget(self, id_: int) -> None:
        """End what ``keep`` began: a cached id becomes free, a held one when it is released."""
        self._kept[id_] = 0
        if id_ in self._cached:
            del self._cached[id_]
            heappush(self._free, id_)
        self._note((id_,), "forgotten")

    def is_kept(self, id_: int) -> bool:
        """Whether the prefix index keeps this id's content."""
        return bool(self._kept[id_])

    def _note(self, ids: Iterable[int], action: str) -> None:
        if self.journal is not None:
            for id_ in ids:
                self.journal.touch(self.noun, id_, action)

    def oldest_cached(self) -> int | None:
        """The cached id that nobody has used for longest."""
        return next(iter(self._cached), None)


class BlockPool(IdPool):
    """Ids of K/V blocks."""

    noun = "block"


class StateSlots(IdPool):
    """Ids of state slots, with what the engine left in each.

    0 ......... position ......... position + unfolded
    ^ in the state ^ accepted drafts, recorded beside the state
    """

    noun = "slot"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.position = [0] * size
        self.unfolded = [0] * size

    def stand(self, slot: int, position: int, unfolded: int = 0) -> None:
        """Note that the state stands at ``position`` with ``unfolded`` records beside it."""
        self.position[slot] = position
        self.unfolded[slot] = unfolded

    def stand_like(self, target: int, source: int) -> None:
        """Note that ``target`` becomes a copy of ``source``."""
        self.position[target] = self.position[source]
        self.unfolded[target] = self.unfolded[source]
