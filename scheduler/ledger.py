"""Everything the scheduler remembers, and the moves that every part of it uses."""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from .config import SchedulerConfig
from .grouping import Grouping
from .pools import BlockPool, StateSlots
from .prefix_index import PrefixIndex
from .request import FinishReason
from .round import Commit, Round, Row
from .sequence import Sequence
from .waiting_line import WaitingLine

_order = attrgetter("order")


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    rounds: int = 0
    preemptions: int = 0
    failures: int = 0
    prompt_tokens: int = 0  # computed, whether for the first time or again
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    lookup_tokens: int = 0  # that could have come from the cache
    hit_tokens: int = 0  # that did


class Ledger:
    """Pools, sequences and the round in flight."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.blocks = BlockPool(config.num_blocks)
        self.slots = StateSlots(config.num_slots)
        self.index: PrefixIndex | None = None
        if config.prefix_cache:
            self.index = PrefixIndex(
                self.blocks, self.slots, config.block_size, config.model_identity
            )
        self.checkpoint_limit = config.checkpoint_limit
        self.claims: dict[int, Sequence] = {}  # who is going to compute a block, by its hash
        self.sequences: dict[int, Sequence] = {}  # live, and those that ended since the last plan
        self.line = WaitingLine(config.max_wait_rounds)
        self.running: list[Sequence] = []  # who yields last comes first
        self.paused: dict[int, Sequence] = {}
        self.num_live = 0
        self.over: list[int] = []  # those that ended since the last plan
        self.ended: list[Commit] = []
        self.suspects: dict[int, Sequence] = {}  # failed so often that they run alone
        self.deadlines: list[tuple[float, int]] = []  # a heap of deadline and sequence id
        self.in_flight: Round | None = None
        self.grouping, self.grouping_ahead = Grouping(), Grouping()
        self.ahead: dict[int, Row] = {}  # launched ahead and in no round yet, by sequence id
        # What the round in flight reads in copies: held by it, beside its sequences.
        self.pinned_blocks: list[int] = []
        self.pinned_slots: list[int] = []
        self.counters = Counters()

    def blocks_for(self, num_positions: int) -> int:
        """How many blocks cover so many positions."""
        return -(-num_positions // self.config.block_size)

    def blocks_at_most(self, sequence: Sequence) -> int:
        """How many blocks a sequence may ever cover: its last token is never computed."""
        return self.blocks_for(sequence.num_prompt + sequence.request.max_tokens - 1)

    @property
    def promises_growth(self) -> bool:
        """Whether one that runs may not yield again: then all can grow to their limits.

        ``admission.needs`` sees to that; nobody may take more.
        """
        limit = self.config.max_preemptions
        return any(one.num_preemptions >= limit for one in self.running)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that are free or that the index would give up."""
        return self.blocks.num_free + self.blocks.num_cached

    @property
    def num_available_slots(self) -> int:
        """Slots that are free or that the index would give up."""
        return self.slots.num_free + self.slots.num_cached

    def take_blocks(self, count: int) -> list[int]:
        """Take blocks; all of them, or OutOfIds and none."""
        while self.blocks.num_free < count and self.index is not None:
            if not self.index.evict_block():
                break
        return self.blocks.take(count)

    def take_slot(self) -> int:
        """Take a slot, or raise OutOfIds."""
        if not self.slots.num_free and self.index is not None:
            self.index.evict_checkpoint()
        return self.slots.take(1)[0]

    def drop_storage(self, sequence: Sequence) -> None:
        """Release a sequence's blocks and slot; it has then computed nothing.

        A row launched ahead goes with them, and may not even have run: the device takes launches in
        order, so whoever takes these ids next writes to them after it, and nobody reads its result.
        """
        ahead = self.ahead.pop(sequence.seq_id, None)
        if ahead is not None:
            self.slots.release(capture.slot for capture in ahead.captures)
        self.blocks.release(sequence.blocks.cut(0))
        if sequence.slot is not None:
            self.slots.release((sequence.slot,))
            sequence.slot = None
        sequence.computed = 0
        sequence.nodes = []
        sequence.capture_points.clear()
        self.drop_claims(sequence)

    def drop_claims(self, sequence: Sequence) -> None:
        """A sequence no longer computes blocks that others wait for."""
        for key in sequence.claimed:
            if self.claims.get(key) is sequence:
                del self.claims[key]
        sequence.claimed.clear()

    def tail(self, sequence: Sequence) -> tuple[int, ...]:
        """The block that the sequence's next row writes first, if it has that already."""
        index = sequence.computed // self.config.block_size
        return (sequence.blocks[index],) if index < len(sequence.blocks) else ()

    def tail_is_shared(self, sequence: Sequence) -> bool:
        """Whether another sequence holds the block that this one's next row writes first."""
        return any(self.block_is_shared(block) for block in self.tail(sequence))

    def block_is_shared(self, block: int) -> bool:
        """Whether more than one sequence holds a block."""
        holders = self.blocks.holders[block]
        return holders > 1 and holders - self.pinned_blocks.count(block) > 1

    def slot_is_shared(self, sequence: Sequence) -> bool:
        """Whether another sequence holds this one's slot."""
        slot = sequence.slot
        if slot is None:
            return False
        holders = self.slots.holders[slot]
        return holders > 1 and holders - self.pinned_slots.count(slot) > 1

    def unpin(self) -> None:
        """The round in flight is over: release what its copies read."""
        self.blocks.release(self.pinned_blocks)
        self.slots.release(self.pinned_slots)
        self.pinned_blocks.clear()
        self.pinned_slots.clear()

    def run(self, sequence: Sequence) -> None:
        """Move a waiting sequence among the running ones."""
        self.line.remove(sequence)
        sequence.status = "running"
        sequence.started = True
        sequence.last_round = self.counters.rounds
        insort(self.running, sequence, key=_order)

    def wait(self, sequence: Sequence) -> None:
        """Let a sequence wait, with whatever it holds."""
        self._leave(sequence)
        sequence.status = "waiting"
        self.line.add(sequence, self.counters.rounds)

    def pause(self, sequence: Sequence) -> None:
        """Set a sequence aside, with whatever it holds."""
        self._leave(sequence)
        sequence.status = "paused"
        self.paused[sequence.seq_id] = sequence

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Release everything a sequence holds. Its record stays until the next plan."""
        self._leave(sequence)
        self.drop_storage(sequence)
        sequence.status = "ended"
        sequence.finish = reason
        self.over.append(sequence.seq_id)
        self.num_live -= 1
        self.suspects.pop(sequence.seq_id, None)
        self.line.leave(sequence.request.tenant)
        sequence.group.members.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.status == "running":
            self.running.remove(sequence)
            self.drop_claims(sequence)
        elif sequence.status == "paused":
            del self.paused[sequence.seq_id]
        elif sequence in self.line:
            self.line.remove(sequence)
