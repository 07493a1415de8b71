"""Rounds without drafts that a drafter has yet to take in: tokens and hidden states, by sequence.

Rows come and go meanwhile. What is behind is to be written to blocks and a slot: whoever writes
there, or reads, has to see to it first (``disturbed_by``, ``holders``). Most rounds are of the rows
of the last one, each a token further: it is enough to know that (``goes_on``), and they are put to
their sequences once somebody asks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from scheduler.round import UNKNOWN, Row

from ..batch import Window
from ..cuda import device, gathering
from .lineup import Lineup

Left = tuple[Sequence[Row], mx.array, mx.array]
"""What is left of a round of one token a row: rows, tokens (rows, 1), hidden (rows, 1, size)."""


NOBODY = Lineup(())


def is_lost(row: Row, failed: Row | None, block_size: int) -> bool:
    """Whether ``row`` is lost with the row of its sequence that has failed, if one has.

    That is from there on, in its blocks: other blocks are those of an earlier run, which stand.
    """
    if failed is None or row.start < failed.start:
        return False
    first = failed.start // block_size
    return row.blocks[first] == failed.blocks[first]


def before(left: Left, failed: Mapping[int, Row], block_size: int) -> Left | None:
    """What stands of a round where rows have failed, by sequence; None: nothing of it."""
    rows, tokens, hidden = left
    stand = [not is_lost(row, failed.get(row.seq_id), block_size) for row in rows]
    if all(stand):
        return left
    numbers = [number for number, stands in enumerate(stand) if stands]
    if not numbers:
        return None
    place = mx.array(numbers)
    return [rows[number] for number in numbers], tokens[place], hidden[place]


class _Piece(NamedTuple):
    """One row of rounds that follow each other, the first so many of ``rounds``."""

    rounds: list[Left]  # those of the other rows too: the same list
    length: int
    number: int  # of the row


@dataclass(slots=True)
class _Stretch:
    """Rounds of one sequence, one after the other, a token each."""

    first: Row
    last: Row
    pieces: list[_Piece] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(piece.length for piece in self.pieces)

    def row(self, block_size: int) -> Row:
        """All of it as one row of certain tokens, whose ids are on the device.

        Blocks are those that its rounds had: a full one may have been exchanged for another since.
        """
        first, length = self.first, len(self)
        blocks, begun = list(first.blocks[: first.start // block_size]), first.start
        end = begun + length
        for rounds, count, number in self.pieces:
            while (last := min(end, (len(blocks) + 1) * block_size) - 1) < begun + count:
                rows, _, _ = rounds[last - begun]
                blocks.append(rows[number].blocks[len(blocks)])
                if last == end - 1:
                    break
            begun += count
        return Row(first.seq_id, (UNKNOWN,) * length, first.start, tuple(blocks), self.last.slot)

    def cut(self, count: int) -> None:
        """Forget all but the first ``count`` rounds."""
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            kept = min(piece.length, count)
            if kept > 0:
                self.pieces.append(piece._replace(length=kept))
            count -= kept


class RoundsBehind:
    """What is behind of each sequence."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.longest = 0  # rounds that are behind of one of the last round's rows
        self._stretches: dict[int, _Stretch] = {}
        self._of_block: dict[int, int] = {}  # sequence by a block that is to be written
        self._of_slot: dict[int, int] = {}
        self._after: dict[int, set[int]] = {}  # those that begin with a full block's hidden state
        self._last = NOBODY  # of the round that was left last; nobody if that is no matter
        self._going = NOBODY  # of which it was said that they go on
        self._begun: list[tuple[int, int]] = []  # blocks that those begin, with their sequences
        self._loose: list[Left] = []  # that went on, up to the last

    def __len__(self) -> int:
        """Number of sequences of which something is behind."""
        return len(self._stretches)

    def goes_on(self, rows: Sequence[Row]) -> bool:
        """Whether ``rows`` are those of the round that was left last, each a token further.

        Nobody is disturbed by them then.
        """
        lineup, begun = Lineup(rows), []
        numbers = lineup.goes_on_from(self._last, self.block_size)
        if numbers is None:
            return False
        for number in numbers:
            row = rows[number]
            block = row.blocks[row.start // self.block_size]
            if self._of_block.get(block, row.seq_id) != row.seq_id or block in self._after:
                return False
            begun.append((block, row.seq_id))
        self._going, self._begun = lineup, begun
        return True

    def add_going_on(self, rounds: Sequence[Left], number: int, most: int) -> int:
        """Add rounds from ``number`` on as long as they go on; return the number of the next one.

        No more than ``most`` of a row are behind then.
        """
        end = min(len(rounds), number + most - self.longest)
        first = number
        while number < end and self.goes_on(rounds[number][0]):
            if self._begun:
                self._of_block.update(self._begun)
            self._last = self._going
            number += 1
        self._loose += rounds[first:number]
        self.longest += number - first
        return number

    def most(self, rows: Iterable[Row]) -> int:
        """Return the most rounds that are behind of one of ``rows``."""
        self._put_to_sequences()
        most = 0
        for row in rows:
            stretch = self._stretches.get(row.seq_id)
            if stretch is not None and len(stretch) > most:
                most = len(stretch)
        return most

    def add(self, rows: Sequence[Row], tokens: mx.array, hidden: mx.array) -> None:
        """Leave a round of one token a row for later: (rows, 1) and (rows, 1, size).

        They are evaluated, or launched. Each row goes on from what is behind of it, or nothing is.
        """
        self._put_to_sequences()
        self._last = Lineup(rows)
        self.longest, rounds = 0, [(rows, tokens, hidden)]
        for number, row in enumerate(rows):
            stretch = self._stretches.get(row.seq_id)
            if stretch is None:
                stretch = self._stretches[row.seq_id] = _Stretch(row, row)
                self._of_slot[row.slot or 0] = row.seq_id
                self._of_block[row.blocks[row.start // self.block_size]] = row.seq_id
                if (before := self._block_before(row)) is not None:
                    self._after.setdefault(before, set()).add(row.seq_id)
            elif not self._goes_on_in_block(row, stretch):
                self._of_block[row.blocks[row.start // self.block_size]] = row.seq_id
            stretch.last = row
            stretch.pieces.append(_Piece(rounds, 1, number))
            self.longest = max(self.longest, len(stretch))

    def _put_to_sequences(self) -> None:
        """Put to each sequence what is behind of it of the rounds that went on."""
        rounds, self._loose = self._loose, []
        if rounds:
            for number, row in enumerate(self._last.rows):
                stretch = self._stretches[row.seq_id]
                stretch.last = row
                stretch.pieces.append(_Piece(rounds, len(rounds), number))

    def disturbed_by(self, rows: Iterable[Row]) -> list[int]:
        """Return sequences to take in before ``rows`` run: all but those that just go on."""
        self._put_to_sequences()
        found: set[int] = set()
        for row in rows:
            seq_id, stretch = row.seq_id, self._stretches.get(row.seq_id)
            if stretch is not None and self._goes_on_in_block(row, stretch):
                continue
            first = row.start // self.block_size
            if stretch is None:
                first = max(0, first - 1)  # whose hidden state it may begin with
            elif row.start == stretch.last.start + 1 and row.slot == stretch.last.slot:
                block = row.blocks[first]
                if self._of_block.get(block, seq_id) == seq_id and block not in self._after:
                    continue
            else:
                found.add(seq_id)
            if self._stretches:
                found |= set(self.holders(row.blocks[first:], (row.slot or 0,))) - {seq_id}
        return sorted(found)

    def _goes_on_in_block(self, row: Row, stretch: _Stretch) -> bool:
        """Whether ``row`` is the next token of a stretch, in the block and table of the last."""
        last = stretch.last
        return (
            row.blocks is last.blocks
            and row.start == last.start + 1
            and row.slot == last.slot
            and row.start % self.block_size != 0
        )

    def holders(self, blocks: Iterable[int], slots: Iterable[int]) -> list[int]:
        """Return the sequences that are behind in any of these blocks or slots."""
        blocks = tuple(blocks)
        found = {self._of_block.get(block) for block in blocks}
        found |= {self._of_slot.get(slot) for slot in slots}
        found = found.union(*(self._after.get(block, ()) for block in blocks))
        return sorted(one for one in found if one is not None and one in self._stretches)

    def cut(self, failed: Row) -> None:
        """Forget what of a sequence is behind that is lost with its row that has failed."""
        self._put_to_sequences()
        self._last = self._going = NOBODY
        stretch = self._stretches.get(failed.seq_id)
        if stretch is None or not is_lost(stretch.last, failed, self.block_size):
            return
        stretch.cut(failed.start - stretch.first.start)
        if stretch.pieces:
            stretch.last = replace(stretch.last, start=failed.start - 1)
        else:
            self._let_go(self._stretches.pop(failed.seq_id))

    def take(
        self, seq_ids: Iterable[int] | None = None
    ) -> tuple[list[Window], mx.array, mx.array] | None:
        """Hand out what is behind of these sequences, or of all: windows, tokens, hidden states.

        They are (windows, widest) and (windows, widest, size), padded with anything. None if there
        is nothing.
        """
        self._put_to_sequences()
        self._last = self._going = NOBODY
        wanted = list(self._stretches) if seq_ids is None else seq_ids
        taken = [found for one in wanted if (found := self._stretches.pop(one, None)) is not None]
        if not taken:
            return None
        windows = [Window(self._let_go(stretch)) for stretch in taken]
        return windows, *_gather(taken)

    def _block_before(self, row: Row) -> int | None:
        """The block whose hidden state ``row`` begins with, if it begins with a block's."""
        if row.start == 0 or row.start % self.block_size:
            return None
        return row.blocks[row.start // self.block_size - 1]

    def _let_go(self, stretch: _Stretch) -> Row:
        """Nothing is behind of a sequence any more; return what was, as one row."""
        row, last, before = stretch.row(self.block_size), stretch.last, stretch.first
        first = before.start // self.block_size
        for block in (*row.blocks[first:], *last.blocks[first:]):
            if self._of_block.get(block) == row.seq_id:
                del self._of_block[block]
        if self._of_slot.get(row.slot or 0) == row.seq_id:
            del self._of_slot[row.slot or 0]
        if (after := self._block_before(before)) is not None:
            self._after[after].discard(row.seq_id)
            if not self._after[after]:
                del self._after[after]
        return row


def _gather(stretches: Sequence[_Stretch]) -> tuple[mx.array, mx.array]:
    """Tokens and hidden states of rows of several rounds, side by side."""
    longest: dict[int, _Piece] = {}  # of each list of rounds, by identity: rounds after it failed
    for piece in (one for stretch in stretches for one in stretch.pieces):
        key = id(piece.rounds)
        if key not in longest or piece.length > longest[key].length:
            longest[key] = piece
    firsts: dict[int, int] = {}  # likewise, among all
    rounds: list[Left] = []
    for key, piece in longest.items():
        firsts[key] = len(rounds)
        rounds += piece.rounds[: piece.length]
    arrays = np.zeros((len(stretches), max(map(len, stretches))), np.int32)
    rows = np.zeros_like(arrays)
    for number, stretch in enumerate(stretches):
        at = 0
        for piece in stretch.pieces:
            first, end = firsts[id(piece.rounds)], at + piece.length
            arrays[number, at:end] = np.arange(first, first + piece.length)
            rows[number, at:end] = piece.number
            at = end
    tokens = [tokens for _, tokens, _ in rounds]
    hidden = [hidden for _, _, hidden in rounds]
    if device.is_default() and gathering.takes(tokens, hidden):
        return gathering.gather(tokens, hidden, arrays, rows)
    counts = np.array([one.shape[0] for one in hidden], np.int32)
    places = mx.array((np.cumsum(counts, dtype=np.int32) - counts)[arrays] + rows)
    joined = mx.concatenate([one[:, 0] for one in tokens])[places]
    return joined, mx.concatenate([one[:, 0] for one in hidden])[places]
