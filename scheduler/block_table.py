"""One sequence's blocks, in order of position."""

from collections.abc import Iterable, Iterator


class BlockTable:
    """Ordered block ids; block i covers positions i * block_size .. (i + 1) * block_size - 1.

    The tuple that rows carry is kept between rounds, for most rounds change no table.
    """

    __slots__ = ("_ids", "_tuple")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = list(ids)
        self._tuple: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __getitem__(self, index: int) -> int:
        return self._ids[index]

    def __repr__(self) -> str:
        return f"BlockTable({self._ids})"

    def first(self, count: int) -> tuple[int, ...]:
        """The first ``count`` ids."""
        ids = self._tuple
        if ids is None or len(ids) != count:
            ids = self._tuple = tuple(self._ids[:count])
        return ids

    def extend(self, ids: Iterable[int]) -> None:
        """Append ids."""
        self._ids += ids
        self._tuple = None

    def replace(self, index: int, block: int) -> int:
        """Put ``block`` in place of another and return that one."""
        old, self._ids[index] = self._ids[index], block
        self._tuple = None
        return old

    def cut(self, count: int) -> list[int]:
        """Keep the first ``count`` ids and return the others, the last first."""
        tail = self._ids[count:]
        if tail:
            del self._ids[count:]
            self._tuple = None
            tail.reverse()
        return tail
