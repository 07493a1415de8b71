"""The plan of one engine step and its result: data only, the seam between scheduler and engine.

A row's window is its certain tokens followed by ``num_drafts`` drafts that the engine proposes:

    tokens (committed, not computed)     drafts (uncertain)
    start .................... certain_end ............. end
    ^ state in slot stands here once ``fold`` recorded drafts are added

What a row promises, and the engine may rely on:
- ``blocks`` cover positions 0 .. end-1; those at or after start // block_size belong to it alone;
- ``slot`` belongs to it alone; when start == 0 its content is stale and counts as zeros;
- every position below start is computed.
What the engine promises back:
- K/V of all window positions are written; those of rejected drafts are garbage nobody reads;
- the state written to ``slot`` stands at certain_end; the drafts' inputs are recorded beside it:
  if k of them are accepted, this sequence's next row starts at certain_end + k with fold k.

A row may be launched ahead: given out while the round before it is in flight, with a token that
only that round will tell (see ``ahead``). The round it belongs to names it again, as launched.
"""

from dataclasses import dataclass

from .request import FinishReason

UNKNOWN = -1
"""Stands for the token that the round in flight picks for the row's sequence."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block of every layer's K/V (and its kept hidden state) before the forward pass."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copy a slot before the forward pass: state, records and pending hidden states alike."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Capture:
    """Keep a copy, in ``slot``, of a row's recurrent state as it stands at ``position``.

    start - fold <= position <= certain_end: the state then covers tokens 0 .. position-1, all of
    them committed. Captures of one row are in ascending order of position.
    """

    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a round."""

    seq_id: int
    tokens: tuple[int, ...]  # certain: a prompt chunk, or the pending token
    start: int  # absolute position of tokens[0]
    blocks: tuple[int, ...]
    slot: int | None = None  # None for models without recurrent layers
    fold: int = 0
    num_drafts: int = 0
    samples: bool = True  # False: a prompt chunk with more of the prompt to come
    captures: tuple[Capture, ...] = ()
    launched: bool = False  # it runs already, without this round's copies: launched ahead

    @property
    def certain_end(self) -> int:
        """The first position after the certain tokens."""
        return self.start + len(self.tokens)

    @property
    def decodes(self) -> bool:
        """Whether it is the pending token, not a prompt chunk."""
        return self.samples and len(self.tokens) == 1

    @property
    def end(self) -> int:
        """The first position after the window."""
        return self.start + len(self.tokens) + self.num_drafts


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows whose first ``num_blocks`` blocks are the same ones, all of them before each start.

    So they are computed, and no row of the round writes them. A row is in one group at most.
    """

    seq_ids: tuple[int, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Round:
    """The plan of one step: copies first (blocks, then slots), then all rows not yet launched.

    What a group shares the engine may read once for all of it; it need not.
    """

    rows: tuple[Row, ...]
    block_copies: tuple[BlockCopy, ...] = ()
    slot_copies: tuple[SlotCopy, ...] = ()
    groups: tuple[PrefixGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the engine found for one row, in the order of the round's rows.

    ``tokens`` are the accepted drafts followed by the token the target picked after them; empty for
    a row that does not sample. A stop string may have shortened them, with ``finish`` set.
    ``num_accepted`` counts accepted drafts before any shortening: so much is computed.
    """

    seq_id: int
    tokens: tuple[int, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What one sequence gained in a round, or how it ended outside one."""

    seq_id: int
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    num_drafted: int = 0
    num_accepted: int = 0
