"""Which rows of a round share their leading blocks, so that those can be read once for all.

    rows, in order of their blocks      neighbours share      groups
    7 8 9 12 ...                        3 ................... rows 1, 2 with 3 blocks
    7 8 9 15 ...                        1 ................... or rows 1, 2, 3 with 1 block:
    7 20 21 ...                                               whichever spares more reading

Only full blocks before a row's start count: those are computed, and the row writes none of them.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from .round import PrefixGroup, Row

FEWEST_BLOCKS = 2  # that a group shares: reading one block often costs less than a group does

_Entry = tuple[tuple[int, ...], int]  # the blocks before a row's start, and its sequence


@dataclass(slots=True)
class _Branch:
    """Rows that agree on their first ``depth`` blocks, and how they are grouped so far."""

    depth: int
    loose: list[int] = field(default_factory=list)  # sequences in no group
    groups: list[PrefixGroup] = field(default_factory=list)


class Grouping:
    """What ``find_groups`` said of the rows of a round, which most rounds after it leave as it is.

    Groups stay while the rows do, and come to count only blocks that no other row counts there.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, tuple[int, ...], int]] = []  # sequence, blocks, how many count
        self._groups: tuple[PrefixGroup, ...] = ()

    def find(self, rows: Seq[Row], block_size: int) -> tuple[PrefixGroup, ...]:
        """Return the groups of ``rows``, in whatever order."""
        if not self._stay(rows, block_size):
            self._groups = find_groups(rows, block_size)
            self._kept = [(row.seq_id, row.blocks, row.start // block_size) for row in rows]
        return self._groups

    def _stay(self, rows: Seq[Row], block_size: int) -> bool:
        kept = self._kept
        if [row.seq_id for row in rows] != [seq_id for seq_id, _, _ in kept]:
            return False
        grown = [
            index
            for index, (row, (_, blocks, count)) in enumerate(zip(rows, kept, strict=True))
            if row.blocks is not blocks or row.start // block_size != count
        ]
        if not grown:
            return True
        counts = [row.start // block_size for row in rows]
        places: dict[int, Counter[int]] = {}  # how many rows count which block there
        for index in grown:
            row, (_, blocks, count) = rows[index], kept[index]
            if counts[index] < count or row.blocks[:count] != blocks[:count]:
                return False
            for place in range(count, counts[index]):
                if place not in places:
                    places[place] = _blocks_at(place, rows, counts)
                if places[place][row.blocks[place]] > 1:
                    return False
            kept[index] = row.seq_id, row.blocks, counts[index]
        return True


def _blocks_at(place: int, rows: Seq[Row], counts: Seq[int]) -> Counter[int]:
    pairs = zip(rows, counts, strict=True)
    return Counter([row.blocks[place] for row, count in pairs if count > place])


def find_groups(rows: Seq[Row], block_size: int) -> tuple[PrefixGroup, ...]:
    """Return groups of at least two rows, each row in one at most."""
    least, last = FEWEST_BLOCKS * block_size, FEWEST_BLOCKS - 1
    long = [row for row in rows if row.start >= least]
    counts = Counter([row.blocks[last] for row in long])
    if len(counts) == len(long):
        return ()
    alike: dict[int, list[_Entry]] = {block: [] for block, count in counts.items() if count > 1}
    for row in long:
        entries = alike.get(row.blocks[last])
        if entries is not None:
            entries.append((row.blocks[: row.start // block_size], row.seq_id))
    groups: list[PrefixGroup] = []
    for entries in alike.values():
        groups += _divide(entries)
    return tuple(groups)


def _divide(entries: list[_Entry]) -> list[PrefixGroup]:
    """Walk the tree that the rows' blocks make, from leaf to leaf."""
    entries.sort()
    path = [_Branch(0)]
    for index, (blocks, seq_id) in enumerate(entries, start=1):
        shared = num_common(blocks, entries[index][0]) if index < len(entries) else 0
        if shared > path[-1].depth:
            path.append(_Branch(shared))
        path[-1].loose.append(seq_id)
        while path[-1].depth > shared:
            branch = _closed(path.pop())
            if path[-1].depth < shared:
                path.append(_Branch(shared))
            path[-1].loose += branch.loose
            path[-1].groups += branch.groups
    return path[0].groups


def _closed(branch: _Branch) -> _Branch:
    """Group the rows of a branch at its depth, but those that spare more in deeper groups."""
    depth = branch.depth
    if depth < FEWEST_BLOCKS:
        return branch
    joining = [one for one in branch.groups if len(one.seq_ids) * depth >= _spared(one)]
    seq_ids = [*branch.loose, *(seq_id for one in joining for seq_id in one.seq_ids)]
    together = PrefixGroup(tuple(seq_ids), depth)
    if len(seq_ids) < 2 or _spared(together) <= sum(map(_spared, joining)):
        return branch
    deeper = [one for one in branch.groups if one not in joining]
    return _Branch(depth, groups=[together, *deeper])


def _spared(group: PrefixGroup) -> int:
    """How many blocks fewer are read."""
    return (len(group.seq_ids) - 1) * group.num_blocks


def num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """How many leading blocks two tables have in common.

    Tables that have one block in common mostly have all before it: search, then make sure.
    """
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == two[middle - 1]:
            low = middle
        else:
            high = middle - 1
    if one[:low] == two[:low]:
        return low
    pairs = zip(one[:low], two[:low], strict=True)
    return next(at for at, (here, there) in enumerate(pairs) if here != there)
