"""Drafts what followed the same words earlier in the sequence: prompt lookup, without a model."""

from collections.abc import Mapping, Sequence

import mlx.core as mx

from scheduler.round import BlockCopy, Row, SlotCopy

from ..view import BatchView
from .drafter import Choose, Drafter, TokensOf
from .ngram_search import NgramSearch


class LookupDrafter(Drafter):
    """Looks the last tokens of each sequence up in what it said and was asked before."""

    name = "lookup"
    is_free = True

    def __init__(self) -> None:
        self._tokens_of: TokensOf | None = None
        self._searches: dict[int, NgramSearch] = {}
        self._evidence: dict[int, int] = {}

    def attach(self, tokens_of: TokensOf) -> None:
        self._tokens_of = tokens_of

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """Return what is found; sequences that say nothing twice are left out."""
        assert self._tokens_of is not None, "attach() says where the tokens are"
        found: dict[int, tuple[int, ...]] = {}
        self._evidence.clear()
        for row in rows:
            seq_id = row.seq_id
            if (search := self._searches.get(seq_id)) is None:
                search = self._searches[seq_id] = NgramSearch()
            search.extend(self._tokens_of(seq_id))
            drafts, num_same = search.look(row.num_drafts)
            if drafts:
                found[seq_id], self._evidence[seq_id] = drafts, num_same
        return found

    def evidence(self, seq_id: int) -> int:
        return self._evidence.get(seq_id, 0)

    def leave(self, view: BatchView, hidden: mx.array) -> bool:
        return True

    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Nothing is kept of what the target ran."""

    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        """Nothing is kept in blocks or slots."""

    def forget(self, seq_id: int) -> None:
        self._searches.pop(seq_id, None)
