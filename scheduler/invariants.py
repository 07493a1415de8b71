"""Conservation laws: for every test's teardown, and after every event with ``check=True``."""

from collections import Counter
from typing import TYPE_CHECKING

from .ledger import Ledger
from .pools import IdPool

if TYPE_CHECKING:
    from .scheduler import Scheduler


class InvariantViolated(AssertionError):
    """The scheduler's books do not balance."""


class Leak(InvariantViolated):
    """Ids count holders that nobody can name, or fewer than there are."""


def check(scheduler: "Scheduler") -> None:
    """Raise InvariantViolated, naming the ids and their holders, unless all books balance."""
    check_ledger(scheduler.ledger)


def check_ledger(ledger: Ledger) -> None:
    """The same, for the books alone."""
    _check_pool(ledger.blocks, block_holders(ledger))
    _check_pool(ledger.slots, slot_holders(ledger))
    _check_sequences(ledger)


def block_holders(ledger: Ledger) -> dict[int, list[str]]:
    """Who holds each referenced block, by name."""
    holders: dict[int, list[str]] = {}
    for sequence in ledger.sequences.values():
        for block in sequence.blocks:
            holders.setdefault(block, []).append(f"sequence {sequence.seq_id}")
    for block in ledger.pinned_blocks:
        holders.setdefault(block, []).append("a copy in flight")
    return holders


def slot_holders(ledger: Ledger) -> dict[int, list[str]]:
    """Who holds each referenced slot, by name."""
    holders: dict[int, list[str]] = {}
    for sequence in ledger.sequences.values():
        if sequence.slot is not None:
            holders.setdefault(sequence.slot, []).append(f"sequence {sequence.seq_id}")
    for slot in ledger.pinned_slots:
        holders.setdefault(slot, []).append("a copy in flight")
    if ledger.in_flight is not None:
        for row in ledger.in_flight.rows:
            for capture in row.captures:
                holders.setdefault(capture.slot, []).append(f"a capture of sequence {row.seq_id}")
    return holders


def _check_pool(pool: IdPool, holders: dict[int, list[str]]) -> None:
    counted = {id_: count for id_, count in enumerate(pool.holders) if count}
    actual = {id_: len(names) for id_, names in holders.items()}
    if counted != actual:
        wrong = sorted(id_ for id_ in {*counted, *actual} if counted.get(id_) != actual.get(id_))
        raise Leak(
            "; ".join(
                f"{pool.noun} {id_} counts {pool.holders[id_]} holders, "
                f"held by {holders.get(id_, 'nobody')}"
                for id_ in wrong
            )
        )
    free, cached = pool.free_ids, pool.cached_ids
    states = Counter([*free, *cached, *counted])
    missing = set(range(1, pool.size)) - states.keys()
    doubled = sorted(id_ for id_, count in states.items() if count > 1)
    if missing:
        raise Leak(f"{pool.noun}s {sorted(missing)} are neither free nor cached nor referenced")
    if doubled or pool.num_free != len(free) or 0 in states:
        raise InvariantViolated(f"{pool.noun}s {doubled or [0]} are in two states or scratch")


def _check_sequences(ledger: Ledger) -> None:
    live = [one for one in ledger.sequences.values() if one.finish is None]
    places = Counter(one.seq_id for one in [*ledger.running, *ledger.line, *ledger.paused.values()])
    if places != Counter(one.seq_id for one in live):
        raise InvariantViolated(f"sequences {sorted(places)} have places, {live} are live")
    if len(live) != ledger.num_live or len(ledger.running) > ledger.config.max_rows:
        raise InvariantViolated(f"{ledger.num_live} live and {len(ledger.running)} running")
    for sequence in live:
        name = f"sequence {sequence.seq_id}"
        if not 0 <= sequence.computed < len(sequence.tokens):
            raise InvariantViolated(f"{name} has computed {sequence.computed} of its tokens")
        if ledger.blocks_for(sequence.computed) > len(sequence.blocks):
            raise InvariantViolated(f"{name} has computed more than its blocks hold")
        if sequence.status != "running" and sequence.in_flight:
            raise InvariantViolated(f"{name} is {sequence.status} in flight")
        if ledger.config.uses_slots and sequence.slot is not None and not sequence.in_flight:
            slots, slot = ledger.slots, sequence.slot
            if slots.position[slot] + slots.unfolded[slot] != sequence.computed:
                raise InvariantViolated(f"{name} has computed more or less than its state")
        if ledger.config.uses_slots and sequence.slot is None and sequence.computed:
            raise InvariantViolated(f"{name} has computed {sequence.computed} without a state")
