"""Who yields when a decode row needs a block or a slot and none is left.

The paused and the waiting yield first, for they run nothing; then the running ones that come after
the needy one in order, the last first. A victim keeps its tokens, loses its blocks and slot, and
waits at the head of its class to compute them again. The first in order never yields, so the
work ends; ``admission.fits`` bounds how often anybody does.
"""

from collections import Counter
from collections.abc import Iterable

from .ledger import Ledger
from .sequence import Sequence


def make_room(
    ledger: Ledger, needy: Sequence, num_blocks: int, num_slots: int, busy: set[int]
) -> bool:
    """Preempt until so much is available; return False, with nobody preempted, if it cannot be.

    ``busy`` are ids of sequences that have a row in this round already.
    """
    if num_blocks <= ledger.num_available_blocks and num_slots <= ledger.num_available_slots:
        return True
    others = [one for one in _idle(ledger) if one is not needy]
    return _make_room(ledger, needy, num_blocks, num_slots, [*others, *_later(ledger, needy, busy)])


def give_way(ledger: Ledger, sequence: Sequence, num_blocks: int, num_slots: int) -> bool:
    """Let those that run nothing yield to a waiting sequence; return whether anybody did."""
    if num_blocks <= ledger.num_available_blocks and num_slots <= ledger.num_available_slots:
        return False
    idle = [one for one in _idle(ledger) if one is not sequence]
    return _make_room(ledger, sequence, num_blocks, num_slots, idle)


def _make_room(
    ledger: Ledger,
    needy: Sequence,
    num_blocks: int,
    num_slots: int,
    candidates: Iterable[Sequence],
) -> bool:
    lacking_blocks = num_blocks - ledger.num_available_blocks
    lacking_slots = num_slots - ledger.num_available_slots
    wanted = lacking_blocks > 0, lacking_slots > 0
    victims: list[Sequence] = []
    # Once its other holders have yielded, what the needy one shares needs no copy any more.
    held_blocks = Counter(ledger.tail(needy))
    held_slots = Counter(() if needy.slot is None else (needy.slot,))
    for victim in candidates:
        if lacking_blocks <= 0 and lacking_slots <= 0:
            break
        victims.append(victim)
        lacking_blocks -= _count(held_blocks, victim.blocks, ledger.blocks.holders)
        if victim.slot is not None:
            lacking_slots -= _count(held_slots, (victim.slot,), ledger.slots.holders)
    if lacking_blocks > 0 or lacking_slots > 0:
        return False
    blocks = {id_ for id_, n in held_blocks.items() if n == ledger.blocks.holders[id_]}
    slots = {id_ for id_, n in held_slots.items() if n == ledger.slots.holders[id_]}
    for victim in victims:
        frees_block = wanted[0] and not blocks.isdisjoint(victim.blocks)
        if frees_block or (wanted[1] and victim.slot in slots):
            preempt(ledger, victim)
    return True


def give_up_shares(ledger: Ledger, sequence: Sequence) -> None:
    """Let those that run nothing give up the block that a sequence would have to copy.

    Where everybody has been promised room to grow, a copy would break the promise.
    """
    [tail] = ledger.tail(sequence)
    if ledger.promises_growth:
        for one in _idle(ledger):
            if one is not sequence and tail in one.blocks:
                preempt(ledger, one)


def preempt(ledger: Ledger, sequence: Sequence) -> None:
    """Take a sequence's blocks and slot; it keeps its tokens and computes them again later."""
    ledger.drop_storage(sequence)
    ledger.counters.preemptions += 1
    if sequence.status == "running":
        sequence.num_preemptions += 1
        ledger.wait(sequence)


def _idle(ledger: Ledger) -> list[Sequence]:
    idle = [*ledger.paused.values(), *ledger.line.started]
    return [one for one in idle if len(one.blocks) or one.slot is not None]


def _later(ledger: Ledger, needy: Sequence, busy: set[int]) -> list[Sequence]:
    """Running sequences that yield to the needy one, those that yielded too often last."""
    order, limit = needy.order, ledger.config.max_preemptions
    later = [one for one in ledger.running if one.order > order and one.seq_id not in busy]
    later.reverse()
    later.sort(key=lambda one: one.num_preemptions >= limit)
    return later


def _count(held: Counter[int], ids: Iterable[int], holders: list[int]) -> int:
    """Add one hold of each id; return how many ids nobody else holds now."""
    freed = 0
    for id_ in ids:
        held[id_] += 1
        freed += held[id_] == holders[id_]
    return freed
