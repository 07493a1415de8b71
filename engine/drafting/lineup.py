"""The rows of a round, column by column: compared without a look at each of them."""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter, is_not, not_, or_, sub
from typing import Any

from scheduler.round import Row

_columns = attrgetter("seq_id", "slot", "start", "blocks")
_STEP = {1}


class Lineup:
    """Rows, and what of them says whether the next round's are theirs."""

    __slots__ = ("_blocks", "_seq_ids", "_slots", "_starts", "rows")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        columns: Any = zip(*map(_columns, rows), strict=True) if rows else ((),) * 4
        self._seq_ids, self._slots, self._starts, self._blocks = columns

    def goes_on_from(self, before: "Lineup", block_size: int) -> list[int] | None:
        """Whether these are the rows of ``before``, each a token further in its slot.

        If so: the numbers of those that begin a block, or whose table is another one. Else None.
        """
        if (
            self._seq_ids != before._seq_ids
            or self._slots != before._slots
            or set(map(sub, self._starts, before._starts)) != _STEP
        ):
            return None
        changed = map(is_not, self._blocks, before._blocks)
        begins = map(not_, map(block_size.__rmod__, self._starts))
        return list(compress(range(len(self.rows)), map(or_, changed, begins)))
