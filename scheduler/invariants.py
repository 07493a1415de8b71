"""Conservation laws: for every test's teardown, and after every event with ``check=True``.

Two faults are told apart: a leak is an id whose count of holders is not what its holders say; a
contamination is content that is not what its hash or its sequence says.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .ledger import Ledger
from .pools import IdPool
from .prefix_index import Node, PrefixIndex, chain_hash
from .round import Row
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler

ReadTokens = Callable[[int], tuple[int, ...] | None]


class InvariantViolated(AssertionError):
    """The scheduler's books do not balance."""


class Leak(InvariantViolated):
    """Ids count holders that nobody can name, or fewer than there are."""


class Contamination(InvariantViolated):
    """A block or a checkpoint does not hold what its hash says."""


def check(scheduler: "Scheduler", read_tokens: ReadTokens | None = None) -> None:
    """Raise InvariantViolated, naming ids, holders and last events, unless all books balance.

    ``read_tokens`` may tell which tokens a block's pages were computed from; None: unknown.
    """
    ledger = scheduler.ledger
    _check_pool(ledger.blocks, block_holders(ledger))
    _check_pool(ledger.slots, slot_holders(ledger))
    _check_places(ledger)
    for row in ledger.ahead.values():
        _check_ahead(ledger, row)
    for sequence in ledger.sequences.values():
        if sequence.finish is None:
            _check_sequence(ledger, sequence)
    if ledger.index is not None:
        _check_index(ledger, ledger.index, read_tokens)


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
    flying = ledger.in_flight.rows if ledger.in_flight is not None else ()
    for row in (*flying, *ledger.ahead.values()):
        for capture in row.captures:
            holders.setdefault(capture.slot, []).append(f"a capture of sequence {row.seq_id}")
    return holders


def describe(pool: IdPool, ids: Iterable[int], holders: dict[int, list[str]]) -> str:
    """What is known of some ids, one after the other."""
    lines = []
    for id_ in ids:
        line = f"{pool.noun} {id_} counts {pool.holders[id_]} holders, "
        line += f"held by {', '.join(holders.get(id_, ['nobody']))}"
        if pool.journal is not None:
            line += f"; last: {' | '.join(pool.journal.last(pool.noun, id_)) or 'untouched'}"
        lines.append(line)
    return "\n".join(lines)


def _check_pool(pool: IdPool, holders: dict[int, list[str]]) -> None:
    counted = {id_: count for id_, count in enumerate(pool.holders) if count}
    actual = {id_: len(names) for id_, names in holders.items()}
    if counted != actual:
        wrong = sorted(id_ for id_ in {*counted, *actual} if counted.get(id_) != actual.get(id_))
        raise Leak(describe(pool, wrong, holders))
    free, cached = pool.free_ids, pool.cached_ids
    states = Counter([*free, *cached, *counted])
    missing = sorted(set(range(1, pool.size)) - states.keys())
    if missing:
        raise Leak(f"neither free nor cached nor referenced:\n{describe(pool, missing, holders)}")
    doubled = sorted(id_ for id_, count in states.items() if count > 1 or id_ == 0)
    if doubled or pool.num_free != len(free):
        raise InvariantViolated(f"in two states at once:\n{describe(pool, doubled, holders)}")
    unkept = [id_ for id_ in cached if not pool.is_kept(id_)]
    if unkept:
        raise InvariantViolated(f"cached but not kept:\n{describe(pool, unkept, holders)}")


def _check_places(ledger: Ledger) -> None:
    live = [one.seq_id for one in ledger.sequences.values() if one.finish is None]
    places = [one.seq_id for one in (*ledger.running, *ledger.line, *ledger.paused.values())]
    if sorted(places) != sorted(live) or len(live) != ledger.num_live:
        raise InvariantViolated(f"sequences {sorted(live)} are live, {sorted(places)} have a place")
    if len(ledger.running) > ledger.config.max_rows:
        raise InvariantViolated(f"{len(ledger.running)} sequences run at once")
    flying = sorted(row.seq_id for row in ledger.in_flight.rows) if ledger.in_flight else []
    marked = sorted(one.seq_id for one in ledger.sequences.values() if one.in_flight)
    if flying != marked:
        raise InvariantViolated(f"sequences {flying} are in flight, {marked} are marked so")
    for key, owner in ledger.claims.items():
        if owner.status != "running" or key not in owner.claimed:
            raise InvariantViolated(f"sequence {owner.seq_id} claims a block but computes nothing")


def _check_ahead(ledger: Ledger, row: Row) -> None:
    """What a launched row writes belongs to its sequence, which is live and stands before it."""
    name, sequence = f"sequence {row.seq_id}", ledger.sequences.get(row.seq_id)
    if sequence is None or sequence.finish is not None:
        raise Leak(f"a row is launched for {name}, which is not live")
    flying = ledger.in_flight.rows if ledger.in_flight is not None else ()
    stands = next(
        (one.certain_end for one in flying if one.seq_id == row.seq_id), sequence.computed
    )
    if row.start != stands:
        raise InvariantViolated(f"{name} stands at {stands}, but a row is launched at {row.start}")
    size = ledger.config.block_size
    written = row.blocks[row.start // size :]
    if written != sequence.blocks.first(len(row.blocks))[row.start // size :] or not written:
        raise Leak(f"a launched row of {name} writes blocks {written}, which are not its own")
    shared = [block for block in written if ledger.block_is_shared(block)]
    if shared or ledger.slot_is_shared(sequence) or row.slot != sequence.slot:
        raise Contamination(f"others hold what a launched row of {name} writes")


def _check_sequence(ledger: Ledger, sequence: Sequence) -> None:
    name = f"sequence {sequence.seq_id}"
    if not 0 <= sequence.computed < len(sequence.tokens):
        raise InvariantViolated(
            f"{name} has computed {sequence.computed} of {len(sequence.tokens)} tokens"
        )
    if ledger.blocks_for(sequence.computed) > len(sequence.blocks):
        raise InvariantViolated(f"{name} has computed more than its blocks hold")
    holds = len(sequence.blocks) or sequence.slot is not None
    if sequence.status == "waiting" and holds and not sequence.started:
        raise InvariantViolated(f"{name} has never started, but holds blocks or a slot")
    if sequence.status != "running" and sequence.in_flight:
        raise InvariantViolated(f"{name} is {sequence.status} in flight")
    if ledger.config.uses_slots:
        slots, slot = ledger.slots, sequence.slot
        if slot is None and sequence.computed:
            raise InvariantViolated(f"{name} has computed {sequence.computed} without a state")
        if slot is not None and slots.position[slot] + slots.unfolded[slot] != sequence.computed:
            raise InvariantViolated(
                f"{name} has computed {sequence.computed}, but its state stands at "
                f"{slots.position[slot]} + {slots.unfolded[slot]}"
            )
    size = ledger.config.block_size
    for at, node in enumerate(sequence.nodes):
        content = tuple(sequence.tokens[at * size : (at + 1) * size])
        if node.block != sequence.blocks[at] or node.tokens != content:
            raise Contamination(f"{name} has block {sequence.blocks[at]} at {at} for {content}")


def _check_index(ledger: Ledger, index: PrefixIndex, read_tokens: ReadTokens | None) -> None:
    num_children: Counter[int] = Counter()
    for key, node in index.nodes.items():
        parent = node.parent
        if parent is None or chain_hash(parent.key, node.tokens) != key or node.key != key:
            raise Contamination(f"block {node.block} is found by a hash that is not its own")
        if read_tokens is not None and read_tokens(node.block) not in (None, node.tokens):
            raise Contamination(
                f"block {node.block} holds {read_tokens(node.block)}, "
                f"but its hash is of {node.tokens}"
            )
        num_children[parent.key] += 1
        _check_node(ledger, index, node, parent)
    if any(node.num_children != num_children[key] for key, node in index.nodes.items()):
        raise InvariantViolated("a block of the index counts children that it does not have")
    kept = {id_ for id_ in range(ledger.blocks.size) if ledger.blocks.is_kept(id_)}
    kept_slots = {id_ for id_ in range(ledger.slots.size) if ledger.slots.is_kept(id_)}
    if kept != index.by_block.keys() or kept_slots != index.by_slot.keys():
        raise Leak(f"blocks {kept} and slots {kept_slots} are kept, but not all are in the index")
    orphans = [
        slot for slot, node in index.by_slot.items() if index.nodes.get(node.key) is not node
    ]
    if orphans:
        raise InvariantViolated(f"checkpoints {orphans} have lost their blocks")
    if len(kept_slots) > ledger.checkpoint_limit:
        raise InvariantViolated(f"{len(kept_slots)} checkpoints, {ledger.checkpoint_limit} allowed")
    places = {block: place for place, block in enumerate(ledger.blocks.cached_ids)}
    for block, place in places.items():
        above = index.by_block[block].parent
        if above is not None and places.get(above.block, len(places)) < place:
            raise InvariantViolated(f"block {above.block} would be evicted before its child")


def _check_node(ledger: Ledger, index: PrefixIndex, node: Node, parent: Node) -> None:
    if index.by_block.get(node.block) is not node:
        raise Contamination(f"block {node.block} is indexed twice")
    if parent.parent is not None:
        if index.nodes.get(parent.key) is not parent:
            raise InvariantViolated(f"block {node.block} has lost its parent {parent.block}")
        if ledger.blocks.holders[node.block] > ledger.blocks.holders[parent.block]:
            raise InvariantViolated(f"block {node.block} is held, its parent {parent.block} less")
    slot = node.checkpoint
    if slot is not None:
        if index.by_slot.get(slot) is not node:
            raise Contamination(f"slot {slot} is the checkpoint of two blocks")
        position = node.depth * ledger.config.block_size
        if (ledger.slots.position[slot], ledger.slots.unfolded[slot]) != (position, 0):
            raise Contamination(f"checkpoint {slot} does not stand at {position}")
