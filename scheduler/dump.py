"""The scheduler's state for a person's eyes: every sequence, every pool, who shares what."""

from dataclasses import asdict
from typing import Any

from .invariants import block_holders, slot_holders
from .ledger import Ledger
from .sequence import Sequence
from .stats import stats_of


def dump_of(ledger: Ledger) -> dict[str, Any]:
    """Return plain lists, dictionaries, numbers and strings only."""
    return {
        "stats": asdict(stats_of(ledger)),
        "sequences": [_sequence(ledger, one) for one in ledger.sequences.values()],
        "block_holders": block_holders(ledger),
        "slot_holders": slot_holders(ledger),
        "cached_blocks": list(ledger.blocks.cached_ids),
        "checkpoints": _checkpoints(ledger),
        "shared_blocks": shared_blocks(ledger),
    }


def shared_blocks(ledger: Ledger) -> list[dict[str, Any]]:
    """Which running sequences share how many leading blocks, the largest groups first.

    A group of three that shares 5 blocks, two of which share 7, is listed as two groups.
    """
    readers: dict[int, list[int]] = {}
    for sequence in ledger.running:
        for block in sequence.blocks:
            readers.setdefault(block, []).append(sequence.seq_id)
    groups: dict[tuple[int, ...], int] = {}
    for sequence in ledger.running:
        for depth, block in enumerate(sequence.blocks, start=1):
            if len(readers[block]) > 1:
                group = tuple(readers[block])
                groups[group] = max(depth, groups.get(group, 0))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[0]), item[0]))
    return [{"seq_ids": list(group), "num_blocks": depth} for group, depth in ordered]


def _sequence(ledger: Ledger, sequence: Sequence) -> dict[str, Any]:
    slot = sequence.slot
    waits_for = sequence.waits_for
    return {
        "seq_id": sequence.seq_id,
        "request_id": sequence.request.request_id,
        "sample_index": sequence.sample_index,
        "status": sequence.status,
        "finish": sequence.finish,
        "tokens": len(sequence.tokens),
        "prompt": sequence.num_prompt,
        "computed": sequence.computed,
        "cached": sequence.num_cached,
        "blocks": list(sequence.blocks),
        "slot": slot,
        "unfolded": 0 if slot is None else ledger.slots.unfolded[slot],
        "in_flight": sequence.in_flight,
        "launched": sequence.seq_id in ledger.ahead,
        "preemptions": sequence.num_preemptions,
        "failures": sequence.num_failures,
        "waits_for": None if waits_for is None else waits_for[0].seq_id,
    }


def _checkpoints(ledger: Ledger) -> list[dict[str, Any]]:
    if ledger.index is None:
        return []
    size = ledger.config.block_size
    return [
        {"slot": slot, "position": node.depth * size, "block": node.block, "rolling": node.rolling}
        for slot, node in ledger.index.by_slot.items()
    ]
