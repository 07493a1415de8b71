"""Gives rows of a round their drafts: as many as layers take and time affords."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduler.depth import Found
from scheduler.round import UNKNOWN, Row

from ..batch import Window
from ..store import Store
from .drafter import Choose, Drafter
from .offer import Offer

Affordable = Callable[[int, Sequence[Found]], int]
"""How many of the drafts in hand a row may run: (rows, those of each row that has any) -> most."""


@dataclass(frozen=True, slots=True)
class Proposer:
    """Asks a drafter, if there is one."""

    drafter: Drafter | None
    store: Store
    block_size: int
    affordable: Affordable | None

    def windows(
        self,
        rows: Sequence[Row],
        choose: Choose,
        *,
        may_wait: bool = False,
        ready: Offer | None = None,
    ) -> tuple[list[Window], Offer | None]:
        """Return the windows of ``rows`` with their drafts.

        ``may_wait``: drafts may stay on the device, where ``choose`` leaves them; they are then
        UNKNOWN, and the offer has them: the one that is ``ready``, if it fits, or another.
        """
        drafting = self._drafting(rows)
        if not drafting:
            return [Window(row) for row in rows], None
        assert self.drafter is not None
        offer = None
        if may_wait:
            fits = ready is not None and all(map(ready.fits, drafting))
            offer = ready if fits else self.drafter.begin(drafting, choose)
        if offer is not None:
            pairs = (
                (row.seq_id, min(row.num_drafts, offer.counts[row.seq_id])) for row in drafting
            )
            drafts = {seq_id: (UNKNOWN,) * count for seq_id, count in pairs}
        else:
            drafts = self._afforded(dict(self.drafter.propose(drafting, choose)), len(rows))
        return [Window(row, drafts.get(row.seq_id, ())) for row in rows], offer

    def _drafting(self, rows: Sequence[Row]) -> list[Row]:
        if self.drafter is None or not any(row.num_drafts for row in rows):
            return []
        sizes = [self.store.num_drafts(row, self.block_size) for row in rows]
        return [
            row if size == row.num_drafts else replace(row, num_drafts=size)
            for row, size in zip(rows, sizes, strict=True)
            if size
        ]

    def _afforded(
        self, drafts: dict[int, tuple[int, ...]], num_rows: int
    ) -> dict[int, tuple[int, ...]]:
        assert self.drafter is not None
        if self.affordable is None or not self.drafter.is_free:
            return drafts
        evidence = self.drafter.evidence
        found = [Found(seq_id, said, evidence(seq_id)) for seq_id, said in drafts.items()]
        most = self.affordable(num_rows, found)
        return {seq_id: said[:most] for seq_id, said in drafts.items()}
