"""A scheduler and a toy engine driven together, with everything checked after every event."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from toy_engine import Contaminated, Story, ToyEngine, beginning, step

from scheduler import invariants
from scheduler.request import Request
from scheduler.round import Commit, Round, Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig
from scheduler.sequence import Sequence
from scheduler.stopping import cut


class Stalled(AssertionError):
    """There is work left, but nothing moves."""


class WrongGroup(AssertionError):
    """A round says of rows that they share what they do not, or what one of them writes."""


class WrongOutput(AssertionError):
    """A client was told other tokens than the model gives."""


@dataclass
class FixedDepth:
    """As many drafts for everybody as a test says."""

    num_drafts: int = 0
    num_asked: int = 0  # how often a round was decided when it was planned

    def depths(self, sequences: list[Sequence], num_waiting: int) -> list[int]:
        self.num_asked += 1
        return [self.num_drafts] * len(sequences)

    def rests(self, sequences: list[Sequence], num_waiting: int) -> bool:
        return self.num_drafts == 0

    def holds_back(self) -> None:
        pass

    def forget_round(self) -> None:
        pass


WORLDS: list["World"] = []
"""Every world of the test that is running; its teardown checks them all."""


@dataclass
class World:
    """Events go in; what the client has seen comes out."""

    config: SchedulerConfig
    seed: int = 0
    quality: float = 0.7
    verify: bool = True  # every invariant after every event
    eager: bool = False  # launch ahead in every round
    emitted: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    forced: dict[int, int] = field(default_factory=dict)  # preemptions that a test asked for
    now: float = 0.0
    in_flight: Round | None = None
    is_launched: bool = False  # the round in flight runs
    drafts: bool = False  # some of its rows with drafts
    ahead: Round | None = None  # launched while it does
    num_ahead: int = 0  # rows that were launched ahead

    def __post_init__(self) -> None:
        WORLDS.append(self)
        self.choose = random.Random(self.seed)
        self.policy = FixedDepth()
        self.scheduler = Scheduler(self.config, self.policy)
        self.engine = ToyEngine(self.scheduler)

    def submit(
        self, prompt: list[int] | tuple[int, ...], max_tokens: int = 4, **fields
    ) -> list[int]:
        request = Request("request", tuple(prompt), max_tokens, **fields)
        seq_ids = self.scheduler.submit(request)
        for seq_id in seq_ids:
            self._tell(seq_id)
        self._hear(self.scheduler.take_ended())
        self._verify()
        return list(seq_ids)

    def fork(self, seq_id: int) -> int:
        child = self.scheduler.fork(seq_id)
        self._tell(child)
        self._verify()
        return child

    def cancel(self, seq_id: int) -> None:
        self.scheduler.cancel(seq_id)
        self._hear(self.scheduler.take_ended())
        self._verify()

    def pause(self, seq_id: int) -> None:
        self.scheduler.pause(seq_id)
        self._verify()

    def resume(self, seq_id: int) -> None:
        self.scheduler.resume(seq_id)
        self._verify()

    def preempt(self, seq_id: int) -> None:
        if self.scheduler.sequences[seq_id].status == "running":
            self.forced[seq_id] = self.forced.get(seq_id, 0) + 1
        self.scheduler.preempt(seq_id)
        self._verify()

    def clear_cache(self) -> None:
        self.scheduler.clear_cache()
        self._verify()

    def plan(self) -> Round | None:
        assert self.in_flight is None
        self.in_flight = self.scheduler.plan(self.now)
        self._hear(self.scheduler.take_ended())
        if self.in_flight is None and any(
            one.finish is None and one.status != "paused"
            for one in self.scheduler.sequences.values()
        ):
            raise Stalled(f"work is left but nothing is planned: {self.scheduler.stats()}")
        if self.in_flight is not None:
            chunks = sum(len(row.tokens) for row in self.in_flight.rows if len(row.tokens) > 1)
            assert chunks <= self.config.prompt_tokens_per_round
            assert len(self.in_flight.rows) <= self.config.max_rows
            self.check_groups(self.in_flight)
        self._verify()
        return self.in_flight

    def launch(self) -> None:
        """Let the round in flight run."""
        assert self.in_flight is not None
        if not self.is_launched:
            self.drafts = self.engine.launch(self.in_flight, self.choose, self.quality)
            self.is_launched = True

    def plan_ahead(self) -> Round | None:
        """Launch what may be launched of the next round, before the one in flight is read."""
        self.launch()
        ahead = self.scheduler.plan_ahead(drafts=self.drafts)
        self._verify()
        if ahead is not None:
            assert not any(row.launched or row.num_drafts for row in ahead.rows)
            self.check_groups(ahead)
            self.engine.launch(ahead, self.choose, self.quality)
            self.ahead = ahead
            self.num_ahead += len(ahead.rows)
        return ahead

    def land(self, change: Callable[[list[Verdict]], list[Verdict]] | None = None) -> list[Commit]:
        self.launch()
        assert self.in_flight is not None
        if self.eager and self.ahead is None:
            self.plan_ahead()
        verdicts = self.engine.read(self.in_flight)
        commits = self.scheduler.commit(change(verdicts) if change else verdicts)
        self.in_flight, self.ahead, self.is_launched = None, None, False
        self._hear(commits)
        self._verify()
        return commits

    def fail(self, seq_ids: list[int] | None = None) -> list[Commit]:
        assert self.in_flight is not None
        self.engine.wreck(self.in_flight)
        if self.ahead is not None:
            self.engine.wreck(self.ahead)
        self.in_flight, self.ahead, self.is_launched = None, None, False
        commits = self.scheduler.fail(seq_ids)
        self._hear(commits)
        self._verify()
        return commits

    def round(self) -> Round:
        """Plan and land one round."""
        round_ = self.plan()
        assert round_ is not None
        self.land()
        return round_

    def drain(self, limit: int = 5000) -> list[Round]:
        """Resume everything and run until nothing is left; check every answer and every id."""
        if self.in_flight is not None:
            self.land()
        for sequence in list(self.scheduler.sequences.values()):
            self.scheduler.resume(sequence.seq_id)
        rounds = []
        while self.scheduler.has_work:
            if self.plan() is None:
                break
            rounds.append(self.in_flight)
            self.land()
            if len(rounds) > limit:
                raise Stalled(f"{limit} rounds did not end the work")
        self.check_end()
        return rounds

    def check_end(self) -> None:
        """Every sequence has ended, with the model's own answer, and holds nothing."""
        self._verify(always=True)
        for seq_id in self.emitted:
            if seq_id not in self.finished:
                raise Stalled(f"sequence {seq_id} never ended")
            self._check_answer(seq_id)
        ledger = self.scheduler.ledger
        for pool in (ledger.blocks, ledger.slots):
            if pool.num_free + pool.num_cached != pool.num_total:
                raise invariants.Leak(f"{pool.noun}s are held after the end")

    def answer(self, seq_id: int) -> list[int]:
        """All tokens that the client was given, those of an earlier run included."""
        story = self.engine.stories[seq_id]
        return [*story.tokens[len(story.request.prompt) :]]

    def verify_all(self) -> None:
        """Check every invariant and every answer so far."""
        self._verify(always=True)
        for seq_id in self.finished:
            self._check_answer(seq_id)

    def _tell(self, seq_id: int) -> None:
        self.engine.tell(seq_id)
        self.emitted[seq_id] = []

    def _hear(self, commits: list[Commit]) -> None:
        for commit in commits:
            if commit.seq_id in self.finished:
                raise WrongOutput(f"sequence {commit.seq_id} goes on after its end")
            self.emitted[commit.seq_id] += commit.tokens
            self.engine.stories[commit.seq_id].tokens += commit.tokens
            if commit.finish is not None:
                self.finished[commit.seq_id] = commit.finish

    def _check_answer(self, seq_id: int) -> None:
        told = self.engine.stories[seq_id]
        begun = len(told.tokens) - len(self.emitted[seq_id])
        alone = Story(told.request, told.sample_index, told.tokens[:begun])
        reason = self.finished[seq_id]
        answer = self.answer(seq_id)
        if cut(told.request, 0, told.request.emitted)[1] is not None:
            return  # an earlier run had finished it
        expected, finish = alone.expected()
        whole = reason in ("eos", "stop", "length")
        if answer != (expected if whole else expected[: len(answer)]) or (
            whole and reason != finish
        ):
            raise WrongOutput(f"sequence {seq_id}: {answer} ({reason}), not {expected} ({finish})")

    def _verify(self, *, always: bool = False) -> None:
        if not (self.verify or always):
            return
        invariants.check(self.scheduler)
        for sequence in self.scheduler.sequences.values():
            story = self.engine.stories.get(sequence.seq_id)
            if story is not None and sequence.tokens != story.tokens:
                raise WrongOutput(f"sequence {sequence.seq_id} and its client disagree")
            bound = self.config.max_preemptions + self.forced.get(sequence.seq_id, 0)
            if sequence.num_preemptions > bound:
                raise Stalled(
                    f"sequence {sequence.seq_id} yielded {sequence.num_preemptions} times"
                )
        self.check_index()

    def check_groups(self, round_: Round) -> None:
        """What a group shares is the same for all of it, computed, and written by nobody."""
        size = self.config.block_size
        rows = {row.seq_id: row for row in round_.rows if not row.launched}
        written = {block for row in rows.values() for block in row.blocks[row.start // size :]}
        written |= {copy.target for copy in round_.block_copies}
        grouped = [seq_id for group in round_.groups for seq_id in group.seq_ids]
        if len(grouped) != len(set(grouped)):
            raise WrongGroup(f"a row is in two groups: {round_.groups}")
        for group in round_.groups:
            members = [rows[seq_id] for seq_id in group.seq_ids]
            prefixes = {row.blocks[: group.num_blocks] for row in members}
            computed = min(row.start for row in members) // size
            if len(members) < 2 or len(prefixes) != 1 or group.num_blocks > computed:
                raise WrongGroup(f"{group} does not share computed blocks")
            if written & set(*prefixes):
                raise WrongGroup(f"{group} shares {written & set(*prefixes)}, which is written")

    def check_index(self) -> None:
        """What the index says of a block or slot is what the block or slot holds."""
        index = self.scheduler.ledger.index
        if index is None:
            return
        digests = {root: beginning(salt) for salt, root in index._roots.items()}
        for node in sorted(index.nodes.values(), key=lambda one: one.depth):
            digest, wanted = digests[node.parent], []
            for token in node.tokens:
                digest = step(digest, token)
                wanted.append(digest)
            digests[node] = digest
            if self.engine.pages[node.block] != wanted:
                raise Contaminated(f"block {node.block} does not hold what its hash says")
            if node.checkpoint is not None and self.engine.states[node.checkpoint][0] != digest:
                raise Contaminated(f"checkpoint {node.checkpoint} is not where it says")
