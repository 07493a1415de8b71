"""Which rows of the next round are certain enough to be launched before this one has landed.

    round in flight:  tokens ......... picks x          x is on the device; nobody has read it
    launched ahead:                    runs  x          start = certain_end of the row in flight

The next round will probably want such a row, but x may end its sequence. What is certain is all
that the row touches: it writes one position that no table counts as computed, in a block and a slot
that its sequence alone holds. So nobody sees it until its round is committed, and to drop it is to
release what it holds. Nobody gives way to it. What may yet change where its sequence stands or what
it holds (drafts, a pause, a cancellation, a copy) keeps it out. A round with drafts is planned when
the one before it has landed: whether there is to be one, the policy is asked first. Where drafts
were looked for and none are run, the round in flight is as plain as any.
"""

from dataclasses import replace

from .checkpointing import boundaries_to_capture, num_captures, take_captures
from .depth import DepthPolicy
from .ledger import Ledger
from .round import UNKNOWN, PrefixGroup, Round, Row
from .sequence import Sequence


def plan_ahead(ledger: Ledger, round_: Round, policy: DepthPolicy, *, drafts: bool) -> Round | None:
    """Take what the rows need, remember them, and return them; None if there are none.

    ``drafts``: whether rows of ``round_`` that may run drafts do.
    """
    if any(one.request.needs_tokens for one in ledger.running):
        return None  # two batches, one of which cannot be launched yet, cost more than one
    if drafts and any(row.num_drafts for row in round_.rows):
        return None
    pairs = ((row, ledger.sequences[row.seq_id]) for row in round_.rows)
    going = [(row, sequence) for row, sequence in pairs if _goes_on(ledger, sequence, row)]
    if not going or not policy.rests([sequence for _, sequence in going], len(ledger.line)):
        return None
    num_taken = 0
    if ledger.checkpoint_limit:
        num_taken = num_captures((*round_.rows, *ledger.ahead.values()))
    rows: list[Row] = []
    for before, sequence in going:
        if _has_block(ledger, sequence, before.certain_end):
            row = _row(ledger, sequence, before.certain_end, num_taken)
            num_taken += len(row.captures)
            ledger.ahead[row.seq_id] = row
            rows.append(row)
    if len(rows) < len(going):
        policy.holds_back()
    if not rows:
        return None
    groups: tuple[PrefixGroup, ...] = ()
    if ledger.config.finds_groups:
        groups = ledger.grouping_ahead.find(rows, ledger.config.block_size)
    return Round(tuple(rows), groups=groups)


def _goes_on(ledger: Ledger, sequence: Sequence, row: Row) -> bool:
    """Whether one token more is all that ``row`` can bring, and it need not be the last."""
    return (
        row.samples
        and not (sequence.cancelled or sequence.pausing)
        and sequence.num_generated + 1 < sequence.request.max_tokens
        and sequence.seq_id not in ledger.ahead
        and sequence.seq_id not in ledger.suspects
    )


def _has_block(ledger: Ledger, sequence: Sequence, start: int) -> bool:
    """Take the block of position ``start``, if the sequence lacks it and there is one.

    There is never anything to copy: the row in flight made all that it writes its sequence's own.
    """
    lacks_block = start // ledger.config.block_size >= len(sequence.blocks)
    if lacks_block and ledger.num_available_blocks:
        sequence.blocks.extend(ledger.take_blocks(1))
        return True
    return not lacks_block


def _row(ledger: Ledger, sequence: Sequence, start: int, num_taken: int) -> Row:
    blocks = sequence.blocks.first(start // ledger.config.block_size + 1)
    row = Row(sequence.seq_id, (UNKNOWN,), start, blocks, sequence.slot)
    if ledger.checkpoint_limit and (at := boundaries_to_capture(ledger, sequence, row)):
        row = replace(row, captures=take_captures(ledger, sequence, at, num_taken))
    return row
