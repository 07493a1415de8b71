"""A toy engine that executes rounds over pages and slots of plain values, and trusts nothing.

A page holds, at each position, a digest of all tokens up to it and of the salt; a slot holds the
digest of the tokens that its state has consumed, and its records. So a stale page, a wrong fold, a
capture in the wrong place or a lost copy shows as a wrong digest, at once and by name. The next
token is a function of what the row read, so contamination also changes the output.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduler.request import Request
from scheduler.round import UNKNOWN, Round, Row, Verdict
from scheduler.scheduler import Scheduler
from scheduler.stopping import cut

VOCABULARY = 29


class Contaminated(AssertionError):
    """A row read, or wrote, what it must not."""


def step(digest: int, token: int) -> int:
    return hash((digest, token, 7919))


def beginning(salt: str) -> int:
    return hash((31337, sum(map(ord, salt)), len(salt)))


def target_token(digest: int, sample_index: int) -> int:
    """What the model picks after tokens with this digest, with this sample's noise."""
    return hash((digest, sample_index, 104729)) % VOCABULARY


@dataclass
class Story:
    """What a sequence's tokens must be, known without the scheduler."""

    request: Request
    sample_index: int
    tokens: list[int]
    digests: list[int] = field(default_factory=list)  # digests[i] is of tokens[:i]

    def digest(self, position: int) -> int:
        if not self.digests:
            self.digests.append(beginning(self.request.salt))
        while len(self.digests) <= position:
            at = len(self.digests) - 1
            self.digests.append(step(self.digests[at], self.tokens[at]))
        return self.digests[position]

    def expected(self) -> tuple[list[int], str]:
        """The whole generated part, from here on alone, and why it ends."""
        alone = Story(self.request, self.sample_index, self.tokens[:])
        num_prompt = len(self.request.prompt)
        while True:
            picked = target_token(alone.digest(len(alone.tokens)), self.sample_index)
            kept, finish = cut(self.request, len(alone.tokens) - num_prompt, (picked,))
            alone.tokens += kept
            if finish is not None:
                return alone.tokens[num_prompt:], finish


class ToyEngine:
    """Pages, slots, and every sequence's story."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.size = scheduler.config.block_size
        self.pages = [[0] * self.size for _ in range(scheduler.config.num_blocks)]
        self.states: list[tuple[int, tuple[int, ...]]] = [(0, ())] * scheduler.config.num_slots
        self.stories: dict[int, Story] = {}
        self.num_forwards = 0
        self.num_rows = 0  # that ran
        self.finds = True  # False: no drafts, whatever a row permits
        self.verdicts: dict[
            tuple[int, int], Verdict
        ] = {}  # not read yet, by sequence and row's end

    def tell(self, seq_id: int) -> None:
        """Note a new sequence."""
        sequence = self.scheduler.sequences[seq_id]
        self.stories[seq_id] = Story(sequence.request, sequence.sample_index, list(sequence.tokens))

    def execute(self, round_: Round, choose: random.Random, quality: float) -> list[Verdict]:
        """Run a round; ``quality`` is the chance that a draft is what the target picks."""
        self.launch(round_, choose, quality)
        return self.read(round_)

    def launch(self, round_: Round, choose: random.Random, quality: float) -> bool:
        """Run those rows that do not run already; return whether any of them runs drafts.

        A token may be unknown: what is not read yet.
        """
        self._copy(round_)
        self._check_ownership(round_)
        self.num_forwards += 1
        rows = [self._with_token(row) for row in round_.rows if not row.launched]
        self.num_rows += len(rows)
        states = [self._read(row) for row in rows]
        for row, state in zip(rows, states, strict=True):
            verdict = self._write(row, state, choose, quality)
            self.verdicts[row.seq_id, row.certain_end] = verdict
        return any(self.verdicts[row.seq_id, row.certain_end].num_drafted for row in rows)

    def read(self, round_: Round) -> list[Verdict]:
        """Return what a launched round found."""
        return [self.verdicts.pop((row.seq_id, row.certain_end)) for row in round_.rows]

    def _with_token(self, row: Row) -> Row:
        if row.tokens != (UNKNOWN,):
            return row
        return replace(row, tokens=self.verdicts[row.seq_id, row.start].tokens)

    def _story(self, row: Row) -> Story:
        """The story a row is of, with what was picked for it but is not committed yet."""
        story = self.stories[row.seq_id]
        told = len(story.tokens)
        if row.certain_end <= told:
            return story
        return Story(
            story.request, story.sample_index, [*story.tokens, *row.tokens[told - row.start :]]
        )

    def wreck(self, round_: Round) -> None:
        """Leave what a round that raised may leave: half of it written, all of it wrong."""
        for copy in round_.block_copies:
            self.pages[copy.target] = [-1] * self.size
        for copy in round_.slot_copies:
            self.states[copy.target] = (-1, ())
        for row in round_.rows:
            for block in row.blocks[row.start // self.size :]:
                first = row.start % self.size if block == row.blocks[row.start // self.size] else 0
                self.pages[block][first:] = [-1] * (self.size - first)
            if row.slot is not None:
                self.states[row.slot] = (-1, ())
            for capture in row.captures:
                self.states[capture.slot] = (-1, ())

    def _copy(self, round_: Round) -> None:
        for copies, content in (
            (round_.block_copies, self.pages),
            (round_.slot_copies, self.states),
        ):
            sources = {copy.source for copy in copies}
            targets = [copy.target for copy in copies]
            if sources & set(targets) or len(set(targets)) < len(targets):
                raise Contaminated(f"copies {copies} depend on their order")
            for copy in copies:
                old = content[copy.source]
                content[copy.target] = list(old) if isinstance(old, list) else old

    def _check_ownership(self, round_: Round) -> None:
        """No two rows write one block or slot, and nobody reads what another writes."""
        ledger = self.scheduler.ledger
        blocks: dict[int, int] = {}
        slots: dict[int, int] = {}
        rows = [row for row in round_.rows if not row.launched]
        for row in rows:
            self._own(blocks, row.blocks[row.start // self.size :], row.seq_id)
            self._own(slots, [row.slot] if row.slot is not None else [], row.seq_id)
            self._own(slots, [capture.slot for capture in row.captures], row.seq_id)
        for row in rows:
            for block in row.blocks[: row.start // self.size]:
                if block in blocks:
                    raise Contaminated(f"{row.seq_id} reads block {block}, which is written")
        for pool, owners, pinned in (
            (ledger.blocks, blocks, ledger.pinned_blocks),
            (ledger.slots, slots, ledger.pinned_slots),
        ):
            for id_, seq_id in owners.items():
                if pool.holders[id_] - pinned.count(id_) != 1 or pool.is_kept(id_):
                    raise Contaminated(f"{pool.noun} {id_}, written by {seq_id}, is shared")

    def _own(self, owners: dict[int, int], ids: Iterable[int], seq_id: int) -> None:
        for id_ in ids:
            if id_ == 0 or id_ in owners:
                raise Contaminated(f"id {id_} is written by {seq_id} and another")
            owners[id_] = seq_id

    def _check_shape(self, row: Row, story: Story, name: str) -> None:
        """A row runs its sequence's own tokens, in blocks that cover them, within its limits."""
        if row.tokens != tuple(story.tokens[row.start : row.certain_end]) or not row.tokens:
            raise Contaminated(f"{name} runs {row.tokens}, not its own tokens")
        if row.samples != (row.certain_end == len(story.tokens)):
            raise Contaminated(f"{name} samples at the wrong place")
        if not row.samples and row.certain_end % self.size:
            waits = any(
                one.group is self.scheduler.sequences[row.seq_id].group
                for one in self.scheduler.sequences.values()
                if one.seq_id != row.seq_id
            )
            if not waits or row.certain_end != len(story.tokens) - 1:
                raise Contaminated(f"{name} ends its chunk off the grid, at {row.certain_end}")
        if len(row.blocks) != -(-row.end // self.size) or len(set(row.blocks)) < len(row.blocks):
            raise Contaminated(f"{name} has blocks {row.blocks} for {row.end} positions")
        num_generated = len(story.tokens) - len(story.request.prompt)
        left = max(0, story.request.max_tokens - num_generated - 1)
        if row.num_drafts > left and not self.scheduler.config.even_windows:
            raise Contaminated(f"{name} drafts more than max_tokens permits")

    def _read(self, row: Row) -> int | None:
        """Check everything a row reads; return the state it starts from, after its captures."""
        story = self._story(row)
        name = f"sequence {row.seq_id} at {row.start}"
        self._check_shape(row, story, name)
        for position in range(row.start):
            found = self.pages[row.blocks[position // self.size]][position % self.size]
            if found != story.digest(position + 1):
                raise Contaminated(f"{name} reads a stale position {position}")
        if row.slot is None:
            return None
        state, records = self.states[row.slot]
        if row.start == 0:
            state, records = beginning(story.request.salt), ()
        if row.fold > len(records):
            raise Contaminated(f"{name} folds {row.fold} of {len(records)} records")
        return self._advance(row, state, (*records[: row.fold], *row.tokens))

    def _advance(self, row: Row, state: int, tokens: tuple[int, ...]) -> int:
        """Step the state through folded records and certain tokens, capturing on the way."""
        story, position = self._story(row), row.start - row.fold
        places = [capture.position for capture in row.captures]
        if places != sorted(set(places)) or any(at % self.size or not at for at in places):
            raise Contaminated(f"sequence {row.seq_id} captures at {places}")
        wanted = {capture.position: capture.slot for capture in row.captures}
        captured = {}
        for offset in range(len(tokens) + 1):
            if position + offset in wanted:
                captured[wanted.pop(position + offset)] = state
            if offset == row.fold and state != story.digest(row.start):
                raise Contaminated(f"sequence {row.seq_id} has a wrong state at {row.start}")
            if offset < len(tokens):
                state = step(state, tokens[offset])
        if wanted:
            raise Contaminated(f"sequence {row.seq_id} cannot capture at {sorted(wanted)}")
        for slot, kept in captured.items():
            self.states[slot] = (kept, ())
        return state

    def _write(self, row: Row, state: int | None, choose: random.Random, quality: float) -> Verdict:
        story = self._story(row)
        digest = story.digest(row.start)
        window = list(row.tokens)
        num_drafted = choose.randint(0, row.num_drafts) if choose.random() < 0.1 else row.num_drafts
        num_drafted *= self.finds
        gained: list[int] = []
        going = True
        for offset in range(len(row.tokens) + num_drafted):
            position = row.start + offset
            digest = step(digest, window[offset])
            self.pages[row.blocks[position // self.size]][position % self.size] = digest
            if offset < len(row.tokens) - 1:
                continue
            picked = target_token(digest, story.sample_index)
            if offset < len(row.tokens) + num_drafted - 1:
                draft = picked if choose.random() < quality else (picked + 1) % VOCABULARY
                window.append(draft)
                if going:
                    gained.append(picked)
                going = going and draft == picked
            elif going:
                gained.append(picked)
        if row.slot is not None:
            self.states[row.slot] = (state or 0, tuple(window[len(row.tokens) :]))
        if not row.samples:
            return Verdict(row.seq_id)
        return Verdict(row.seq_id, tuple(gained), num_drafted, len(gained) - 1)
