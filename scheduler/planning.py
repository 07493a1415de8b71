"""Makes the next round: a row for every decoding sequence, prompt chunks in what budget is left.

Everything a row writes belongs to it alone before the round starts: a shared block or slot is
copied first. A chunk ends on a multiple of block_size, or at the end of what there is to compute,
so that chunks stay on the same grid whatever the budget.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cached_property

from . import admission
from .checkpointing import boundaries_to_capture, num_captures, take_captures
from .depth import DepthPolicy
from .ledger import Ledger
from .preemption import give_up_shares, give_way, make_room
from .prefix_sharing import Match, fork_samples, leads, look_up, must_wait, still_waits
from .round import BlockCopy, PrefixGroup, Round, Row, SlotCopy
from .sequence import Sequence

MOST_IN_VAIN = 64  # sequences that are looked up in a round and then have to wait for another


def plan_round(ledger: Ledger, policy: DepthPolicy) -> Round | None:
    """Plan the next round; None if nothing can run."""
    ledger.counters.rounds += 1
    builder = RoundBuilder(ledger, policy)
    suspects = [one for one in ledger.suspects.values() if one.status != "paused"]
    if any(builder.add_alone(suspect) for suspect in suspects):
        return builder.finish()
    builder.add_decoding()
    builder.add_prompts()
    if not suspects and len(ledger.line):
        builder.admit()
    return builder.finish()


class RoundBuilder:
    """A round while it is being planned."""

    def __init__(self, ledger: Ledger, policy: DepthPolicy) -> None:
        self.ledger = ledger
        self.config = ledger.config
        self.policy = policy
        self.rows: list[Row] = []
        self.block_copies: list[BlockCopy] = []
        self.slot_copies: list[SlotCopy] = []
        self.copied_from: dict[int, int] = {}  # sources of slot copies, by target
        self.busy: set[int] = set()
        self.prompt_budget = self.config.prompt_tokens_per_round

    def finish(self) -> Round | None:
        """Return the round, or None if it has no row; its sequences are then in flight."""
        if not self.rows:
            return None
        if self.ledger.checkpoint_limit:
            self._add_captures()
        sequences, number = self.ledger.sequences, self.ledger.counters.rounds
        for row in self.rows:
            sequence = sequences[row.seq_id]
            sequence.in_flight = True
            sequence.last_round = number
        copies = (tuple(self.block_copies), tuple(self.slot_copies))
        groups: tuple[PrefixGroup, ...] = ()
        if self.config.finds_groups:
            groups = self.ledger.grouping.find(
                [one for one in self.rows if not one.launched], self.config.block_size
            )
        return Round(tuple(self.rows), *copies, groups)

    def add_alone(self, suspect: Sequence) -> bool:
        """Give a row to a sequence that may be what made rounds fail, and to nobody else."""
        ledger = self.ledger
        if suspect.status == "waiting" and len(ledger.running) < self.config.max_rows:
            match = self._match_at_any_cost(suspect)
            if admission.fits(ledger, suspect, match):
                self._start(suspect, match)
                ledger.run(suspect)
        if suspect.status == "running":
            self._add_first(suspect)
        return bool(self.rows)

    def add_decoding(self) -> None:
        """Add a row for every sequence whose only uncomputed token is its newest."""
        suspects = self.ledger.suspects
        decoding = [one for one in self.ledger.running if one.num_pending == 1 and one.computed]
        depths: Seq[int] = [0] * len(decoding)
        if decoding and not self._is_decided(decoding):
            depths = self.policy.depths(decoding, len(self.ledger.line))
            if self.config.even_windows:
                depths = [max(depths)] * len(decoding)
        for sequence, depth in zip(decoding, depths, strict=True):
            if sequence.status == "running" and sequence.seq_id not in suspects:
                self._add_decode(sequence, depth)
        self._limit_prompts()

    def _is_decided(self, decoding: Seq[Sequence]) -> bool:
        """Whether rows of this round run already, without drafts; all rows then do without."""
        ahead = self.ledger.ahead
        return bool(ahead) and any(one.seq_id in ahead for one in decoding)

    def add_prompts(self) -> None:
        """Continue the prompts that are being computed, those left out too long first."""
        overdue = self.ledger.counters.rounds - self.config.max_wait_rounds
        prompts = [one for one in self.ledger.running if one.num_pending > 1 or not one.computed]
        prompts.sort(key=lambda one: one.last_round >= overdue)
        for sequence in prompts:
            if sequence.status == "running" and sequence.seq_id not in self.ledger.suspects:
                self._add_chunk(sequence)

    def admit(self) -> None:
        """Start waiting sequences, in order, until one does not fit."""
        ledger = self.ledger
        started: list[Sequence] = []
        num_in_vain = 0
        for sequence in ledger.line.candidates(ledger.counters.rounds):
            if num_in_vain == MOST_IN_VAIN or not self._has_room(sequence, started):
                break
            if still_waits(sequence):
                continue
            match = look_up(ledger, sequence)
            if must_wait(ledger, sequence, match):
                num_in_vain += 1
                continue
            if not self.rows and not started:
                match = self._match_at_any_cost(sequence)
            if not admission.fits(ledger, sequence, match, started):
                break
            self._start(sequence, match)
            started.append(sequence)
        for sequence in started:
            ledger.run(sequence)
        for sequence in started:
            if sequence.status == "running":
                self._add_first(sequence)

    def _match_at_any_cost(self, sequence: Sequence) -> Match:
        """Look a sequence up when nothing else runs: whoever runs nothing gives way to it."""
        ledger = self.ledger
        while True:
            match = look_up(ledger, sequence)
            if not give_way(ledger, sequence, *admission.needs(ledger, sequence, match)):
                return match

    def _start(self, sequence: Sequence, match: Match) -> None:
        copy = admission.start(self.ledger, sequence, match)
        if copy is not None:
            self._add_slot_copy(copy.source, copy.target)

    def _add_first(self, sequence: Sequence) -> None:
        if sequence.num_pending == 1 and sequence.computed:
            self._add_decode(sequence, 0)
        else:
            self._add_chunk(sequence)

    def _has_room(self, sequence: Sequence, started: list[Sequence]) -> bool:
        """Whether there is a row, and a chunk for a prompt, after those that have been started."""
        if len(self.ledger.running) + len(started) >= self.config.max_rows:
            return False
        size = self.config.block_size
        spoken_for = sum(one.num_pending for one in started if one.num_pending > 1)
        return sequence.num_pending == 1 or self.prompt_budget - spoken_for >= size

    def _limit_prompts(self) -> None:
        """What the round's budget leaves after decode rows, but no less than the prompts' share."""
        total = self.config.tokens_per_round
        if total is None:
            return
        decoding = sum(len(row.tokens) + row.num_drafts for row in self.rows)
        share = max(int(self.config.prompt_share * total), self.config.block_size)
        self.prompt_budget = min(self.prompt_budget, max(total - decoding, share))

    def _add_decode(self, sequence: Sequence, depth: int) -> None:
        """Add a row for the pending token and as many drafts as limits and blocks allow."""
        launched = self.ledger.ahead.pop(sequence.seq_id, None)
        if launched is not None:
            self._add_launched(sequence, launched)
            return
        if leads(sequence):
            fork_samples(self.ledger, sequence)
        request, start = sequence.request, sequence.computed
        certain_end = start + 1
        num_drafts = 0
        if depth > 0:
            num_drafts = depth
            if not self.config.even_windows or self._are_promised:
                num_drafts = min(depth, request.max_tokens - sequence.num_generated - 1)
            if self.config.max_context is not None:
                num_drafts = min(num_drafts, self.config.max_context - certain_end)
        reserved = self._reserve(sequence, certain_end, num_drafts)
        if reserved is not None:
            self._add_row(sequence, (sequence.tokens[start],), reserved, samples=True)

    @cached_property
    def _are_promised(self) -> bool:
        """What the ledger says at the round's first row with drafts: rows are many."""
        return self.ledger.promises_growth

    def _add_launched(self, sequence: Sequence, row: Row) -> None:
        """Add the row that runs already, now that its token is known; it drafts nothing."""
        self.rows.append(
            Row(
                seq_id=row.seq_id,
                tokens=(sequence.tokens[row.start],),
                start=row.start,
                blocks=row.blocks,
                slot=row.slot,
                captures=row.captures,
                launched=True,
            )
        )
        self.busy.add(sequence.seq_id)

    def _add_chunk(self, sequence: Sequence) -> None:
        """Add a row for as much of a prompt as the budget allows."""
        start, total = sequence.computed, len(sequence.tokens)
        # The samples of a prompt start at its last token: each of them samples after it.
        last = total - 1 if leads(sequence) and total > 1 else total
        end = min(last, start + self.prompt_budget)
        if end < last:
            end -= end % self.config.block_size
        if end <= start or self._reserve(sequence, end, 0) is None:
            return
        self.prompt_budget -= end - start
        self._add_row(sequence, tuple(sequence.tokens[start:end]), 0, samples=end == total)

    def _reserve(self, sequence: Sequence, certain_end: int, num_drafts: int) -> int | None:
        """Make what the row writes its own; return how many drafts fit, None if no row does.

        Nobody yields for a draft.
        """
        ledger, block_size = self.ledger, self.config.block_size
        table = sequence.blocks
        lacking = -(-(certain_end + num_drafts) // block_size) - len(table)
        copies_block = ledger.tail_is_shared(sequence)
        if copies_block:
            give_up_shares(ledger, sequence)
            copies_block = ledger.tail_is_shared(sequence)
        copies_slot = ledger.slot_is_shared(sequence)
        if lacking <= 0 and not copies_block and not copies_slot:
            return num_drafts
        if num_drafts and lacking + copies_block > ledger.num_available_blocks:
            lacking = ledger.blocks_for(certain_end) - len(table)
            num_drafts = min(num_drafts, (len(table) + max(0, lacking)) * block_size - certain_end)
        lacking = max(0, lacking)
        if not make_room(ledger, sequence, lacking + copies_block, copies_slot, self.busy):
            return None
        # Whoever yielded may have been the other holder.
        if ledger.tail_is_shared(sequence):
            self._copy_block(sequence)
        if ledger.slot_is_shared(sequence):
            self._copy_slot(sequence)
        if lacking:
            table.extend(ledger.take_blocks(lacking))
        return num_drafts

    def _copy_block(self, sequence: Sequence) -> None:
        [target] = self.ledger.take_blocks(1)
        source = sequence.blocks.replace(sequence.computed // self.config.block_size, target)
        self.ledger.pinned_blocks.append(source)
        self.block_copies.append(BlockCopy(source, target))

    def _copy_slot(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        source, target = sequence.slot, self.ledger.take_slot()
        self.ledger.slots.stand_like(target, source)
        self.ledger.pinned_slots.append(source)
        sequence.slot = target
        self._add_slot_copy(source, target)

    def _add_slot_copy(self, source: int, target: int) -> None:
        """Copies of a round do not build on each other: copy what the source itself becomes."""
        source = self.copied_from.get(source, source)
        self.copied_from[target] = source
        self.slot_copies.append(SlotCopy(source, target))

    def _add_row(
        self, sequence: Sequence, tokens: tuple[int, ...], num_drafts: int, *, samples: bool
    ) -> None:
        start, slot = sequence.computed, sequence.slot
        end = start + len(tokens) + num_drafts
        self.rows.append(
            Row(
                seq_id=sequence.seq_id,
                tokens=tokens,
                start=start,
                blocks=sequence.blocks.first(-(-end // self.config.block_size)),
                slot=slot,
                fold=0 if slot is None else self.ledger.slots.unfolded[slot],
                num_drafts=num_drafts,
                samples=samples,
            )
        )
        self.busy.add(sequence.seq_id)

    def _add_captures(self) -> None:
        """Take slots for checkpoints once every row has what it needs."""
        ledger = self.ledger
        num_taken = num_captures((*self.rows, *ledger.ahead.values()))
        for index, row in enumerate(self.rows):
            if row.launched:
                continue  # it has its own
            sequence = ledger.sequences[row.seq_id]
            at = boundaries_to_capture(ledger, sequence, row)
            if at and (captures := take_captures(ledger, sequence, at, num_taken)):
                num_taken += len(captures)
                self.rows[index] = replace(row, captures=captures)
