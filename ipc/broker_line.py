"""The line in front of the workers: fair among tenants, by priority and arrival within one."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = tuple[str, str]  # tenant, model


class BrokerLine(Generic[Item]):
    """One heap a (tenant, model), served in turn. An item that left is skipped when it comes up."""

    def __init__(self) -> None:
        self._heaps: OrderedDict[Key, list[tuple[int, int, Item]]] = OrderedDict()
        # by id(): items need not be hashable; with the arrival that makes an entry the valid one
        self._members: dict[int, tuple[int, Item]] = {}
        self._late = count(1)
        self._early = count(-1, -1)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, item: Item) -> bool:
        return id(item) in self._members

    def add(self, key: Key, item: Item, *, priority: int = 0, first: bool = False) -> None:
        """Put ``item`` behind its equals, or before them (``first``): it has waited already."""
        arrival = next(self._early) if first else next(self._late)
        heapq.heappush(self._heaps.setdefault(key, []), (-priority, arrival, item))
        self._members[id(item)] = (arrival, item)

    def discard(self, item: Item) -> None:
        """Take ``item`` out, if it is in."""
        self._members.pop(id(item), None)

    def turns(self) -> list[Key]:
        """Return the (tenant, model) pairs that wait, the one whose turn it is first."""
        for key in [key for key in self._heaps if self._head(key) is None]:
            del self._heaps[key]
        return list(self._heaps)

    def peek(self, key: Key) -> Item | None:
        """Return the next item of one pair."""
        return self._head(key) if key in self._heaps else None

    def pop(self, key: Key) -> Item:
        """Remove the next item of one pair, whose turn comes last now."""
        item = self._head(key)
        if item is None:
            raise KeyError(f"nothing waits for {key}")
        heapq.heappop(self._heaps[key])
        self.discard(item)
        self._heaps.move_to_end(key)
        return item

    def __iter__(self) -> Iterator[Item]:
        return iter([item for _, item in self._members.values()])

    def _head(self, key: Key) -> Item | None:
        heap = self._heaps[key]
        while heap:
            _, arrival, item = heap[0]
            member = self._members.get(id(item))
            if member is not None and member[0] == arrival:
                return item
            heapq.heappop(heap)
        return None
