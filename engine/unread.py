"""What launched rows pick: on the device until their round is read, or for good if it never is."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import mlx.core as mx

from scheduler.round import Row

from .sampling import Picks

Place = tuple[Picks, int]
"""Picks of one batch, and which of them is meant."""


class Unread:
    """The pick of each launched row, by its sequence and the position it is for."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, row: Row, picks: Picks, number: int) -> None:
        """Remember that ``row`` picks number ``number`` of ``picks``."""
        self._places[row.seq_id, row.certain_end] = picks, number

    def pop(self, rows: Iterable[Row]) -> dict[int, Place]:
        """Return where the pick of each of ``rows`` is, by sequence; they are unread no more."""
        return {row.seq_id: self._places.pop((row.seq_id, row.certain_end)) for row in rows}

    def before(self, rows: Sequence[Row]) -> mx.array:
        """Return the tokens that ``rows`` start with, (rows, 1): picks of the rows before them."""
        places = [self._places[row.seq_id, row.start] for row in rows]
        sources = list({id(picks): picks for picks, _ in places}.values())
        ends = accumulate(len(picks) for picks in sources)
        first = {id(picks): end - len(picks) for picks, end in zip(sources, ends, strict=True)}
        order = [first[id(picks)] + number for picks, number in places]
        tokens = mx.concatenate([picks.tokens for picks in sources])
        if order != list(range(tokens.size)):
            tokens = mx.take(tokens, mx.array(order))
        return tokens[:, None].astype(mx.int32)

    def keep(self, rows: Iterable[Row]) -> None:
        """Forget the picks of all but ``rows``."""
        kept = {(row.seq_id, row.certain_end) for row in rows}
        self._places = {key: place for key, place in self._places.items() if key in kept}

    def forget(self, seq_id: int) -> None:
        """Forget the picks of one sequence."""
        for key in [key for key in self._places if key[0] == seq_id]:
            del self._places[key]
