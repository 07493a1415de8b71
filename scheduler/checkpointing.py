"""Keeps recurrent states at block boundaries, for the prefix index of hybrids.

A prompt keeps the states that ``prefix_sharing.claim`` chose. A decoding sequence keeps one rolling
checkpoint: whenever its state crosses a boundary, the new one replaces the last.

    position (state) ... start ... certain_end      the row folds, then runs its certain tokens
              [ any boundary in here can be captured ]
"""

from collections.abc import Iterable

from .ledger import Ledger
from .prefix_index import Node
from .round import Capture, Row
from .sequence import Sequence


def boundaries_to_capture(ledger: Ledger, sequence: Sequence, row: Row) -> list[int]:
    """Positions in ascending order; empty where there is nothing to keep."""
    position, certain_end = row.start - row.fold, row.start + len(row.tokens)
    positions: list[int] = []
    if sequence.capture_points:
        positions = sorted(at for at in sequence.capture_points if position <= at <= certain_end)
    if len(row.tokens) == 1 and row.start:
        boundary = certain_end - certain_end % ledger.config.block_size
        if boundary > position and boundary not in positions:
            positions.append(boundary)
    return positions


def num_captures(rows: Iterable[Row]) -> int:
    """How many slots rows hold for states that are not in the index yet."""
    return sum(len(row.captures) for row in rows)


def take_captures(
    ledger: Ledger, sequence: Sequence, positions: list[int], num_in_flight: int
) -> tuple[Capture, ...]:
    """Take a slot for each position, as far as the bound on checkpoints allows."""
    captures: list[Capture] = []
    for position in positions:
        slot = _take_slot(ledger, sequence, num_in_flight + len(captures))
        if slot is None:
            break
        ledger.slots.stand(slot, position)
        captures.append(Capture(position, slot))
    return tuple(captures)


def _take_slot(ledger: Ledger, sequence: Sequence, num_in_flight: int) -> int | None:
    index = ledger.index
    assert index is not None
    if len(index.by_slot) + num_in_flight >= ledger.checkpoint_limit:
        before = rolling_node(sequence)
        if before is not None:
            index.detach(before)
        elif not index.evict_checkpoint():
            return None
    waiting = len(ledger.line) and len(ledger.running) < ledger.config.max_rows
    if ledger.num_available_slots <= bool(waiting):
        return None  # the last slot is for whoever waits to run
    return ledger.take_slot()


def keep_captures(ledger: Ledger, sequence: Sequence, row: Row) -> None:
    """The round is committed: its captures become checkpoints of the blocks they follow."""
    index = ledger.index
    assert index is not None
    decoding = row.start >= sequence.num_prompt
    for capture in row.captures:
        depth = capture.position // ledger.config.block_size
        if depth <= len(sequence.nodes) and sequence.nodes[depth - 1].checkpoint is None:
            node = sequence.nodes[depth - 1]
            index.attach(node, capture.slot, rolling=decoding)
            if decoding:
                before = rolling_node(sequence)
                if before is not None:
                    index.detach(before)
                sequence.rolling = node
        ledger.slots.release((capture.slot,))


def rolling_node(sequence: Sequence) -> Node | None:
    """Where the sequence's rolling checkpoint is, if it exists and nobody else has used it."""
    node = sequence.rolling
    return node if node is not None and node.rolling else None
