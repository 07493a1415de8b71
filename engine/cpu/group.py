"""Rows of a recurrent layer that decode together."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from ..recurrence.deferred import Records, fold

NOBODY = -1  # in the place of a slot that the group has lost


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that decode together; ``drafts`` is the column where each row's drafts begin."""

    slots: list[int]
    state: mx.array
    records: Records
    drafts: Int32s

    @property
    def arrays(self) -> list[mx.array]:
        """All that it keeps on the device."""
        return [self.state, self.records.k, self.records.u, self.records.log]

    @property
    def is_sparse(self) -> bool:
        """Whether less than half of its rows are somebody's."""
        return 2 * self.slots.count(NOBODY) > len(self.slots)

    def accepted(self, counts: Int32s) -> Records:
        """The records with the first ``counts`` of each row's drafts among those that count."""
        if not counts.any():
            return self.records
        ahead = np.arange(self.records.count) - self.drafts[:, None]
        return self.records.with_valid(
            self.records.valid | ((ahead >= 0) & (ahead < counts[:, None]))
        )

    def draft_columns(self, count: int) -> Int32s:
        """The columns of each row's first ``count`` drafts, clipped: (rows, count)."""
        columns = self.drafts[:, None] + np.arange(count, dtype=np.int32)
        return np.minimum(columns, self.records.count - 1)

    def without(self, slots: Sequence[int | None]) -> "Group | None":
        """The group, of which rows of these slots are nobody's any more; None if all are."""
        if not set(slots).intersection(self.slots):
            return self
        left = [NOBODY if slot in slots else slot for slot in self.slots]
        if all(slot == NOBODY for slot in left):
            return None
        return Group(left, self.state, self.records, self.drafts)

    def rows(self, slots: Sequence[int]) -> "Group":
        """The rows of ``slots``."""
        index = [self.slots.index(slot) for slot in slots]
        state = mx.take(self.state, mx.array(index), axis=0)
        return Group(list(slots), state, self.records.rows(index), self.drafts[index])

    def settled(self, max_drafts: int) -> dict[str, mx.array]:
        """What slots keep of the rows: the state with what counts, and the drafts' records."""
        records = self.records
        arrays = {"state": fold(self.state, records)}
        if max_drafts:
            columns = self.draft_columns(max_drafts)[:, None, :]
            at = mx.broadcast_to(mx.array(columns), (*records.log.shape[:2], max_drafts))
            since = mx.take_along_axis(records.log, at, axis=2) - records.last_log()[..., None]
            arrays |= {"log": since}
            for name, array in (("k", records.k), ("u", records.u)):
                index = mx.array(columns[..., None])
                wide = (*array.shape[:2], max_drafts, array.shape[-1])
                arrays[name] = mx.take_along_axis(array, mx.broadcast_to(index, wide), axis=2)
        return arrays
