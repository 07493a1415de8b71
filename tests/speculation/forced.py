"""Rounds in which the test decides every draft and every pick, and what they must leave behind.

A sequence says a text fixed beforehand: ``pick`` returns its next token whatever the logits are,
``choose`` drafts it right or wrong as a pattern such as "RRWR" says. So each number of accepted
drafts is a matter of the pattern. The logits seen, and all memory, are compared bitwise with a
forward pass of mlx-lm's own model over all tokens at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
from memory_reader import assert_same_memory, read_memory
from scratch import Scratch, ScratchHead
from tiny_models import VOCABULARY, as_loaded, tiny_model

from engine.build import Parts, build_parts
from engine.drafting.chain import Chain
from engine.drafting.drafter import Choose, Drafter
from engine.drafting.mtp import MTPHead
from engine.drafting.mtp_drafter import MTPDrafter
from engine.drafting.offer import Unjudged
from engine.drafting.peer_drafter import PeerDrafter
from engine.drafting.plan import DrafterPlan, PlanDrafter, plan_mtp, plan_peer
from engine.options import EngineOptions
from engine.recurrence.delta_layer import DeltaLayer, read_records
from engine.recurrence.delta_rule import by_loop
from engine.sampling import Picked, Picks
from engine.store import Store
from engine.voice import Wanted
from scheduler.request import Request
from scheduler.round import Commit, Round, Row, Verdict
from scheduler.scheduler import Scheduler
from scheduler.sequence import Sequence as Seq

MOST_DRAFTS = 8
Script = Callable[[Seq], str]
"""The pattern of a sequence's next row: a letter for each draft, R right and W wrong."""


class BlindDrafter(Drafter):
    """Drafts without a model: whatever the test chooses."""

    name = "blind"

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        drafts = {}
        for row in rows:
            chain = Chain()
            for _ in range(row.num_drafts):
                chain.add(choose([row.seq_id], chain, mx.zeros((1, VOCABULARY))))
            drafts[row.seq_id] = chain.all()[0]
        return drafts

    def follow(self, view: Any, hidden: mx.array, kept: Sequence[int]) -> None:
        pass

    def copy(self, blocks: Any, slots: Any) -> None:
        pass


def plan_of(drafter: str) -> tuple[PlanDrafter, Callable[[], Any]]:
    """How to plan ``drafter`` (blind, mtp, or the family of a peer), and its model from scratch."""
    if drafter == "blind":
        plan = DrafterPlan("blind", 0, 0, lambda _blocks, _slots: BlindDrafter())
        return lambda _loaded, _options, _forward: plan, lambda: None
    if drafter == "mtp":
        return lambda _loaded, options, forward: plan_mtp(tiny_head(), options, forward), tiny_head
    peer = as_loaded(tiny_model(drafter, seed=5), drafter)
    return (
        lambda loaded, options, _forward: plan_peer(peer, loaded, options),
        lambda: tiny_model(drafter, seed=5),
    )


def tiny_head() -> MTPHead:
    """A head for the tiny qwen3_5, always of the same random weights."""
    from mlx_lm.models import qwen3_5

    args = tiny_model("qwen3_5").language_model.args
    mx.random.seed(3)
    head = MTPHead(args, qwen3_5.DecoderLayer)
    mx.eval(head.parameters())
    return head


@cache
def parts_of(family: str, drafter: str, block_size: int) -> tuple[Parts, Scratch, Scratch]:
    """Build a tiny model over pages once, and from scratch beside it, with its drafter's.

    What one test leaves in pages and slots is stale to the next one, as it should be.
    """
    plan, make_reference = plan_of(drafter)
    options = EngineOptions(
        exact=True, speculate=MOST_DRAFTS, num_blocks=200, block_size=block_size, max_rows=8
    )
    parts = build_parts(as_loaded(tiny_model(family), family), options, plan)
    return parts, Scratch(tiny_model(family)), Scratch(make_reference())


class Forced:
    """One tiny model under a scheduler, checked as it goes."""

    def __init__(
        self,
        family: str,
        script: Script,
        *,
        drafter: str = "blind",
        block_size: int = 4,
        ahead: bool = False,
        in_order: bool = False,
        **config: Any,
    ) -> None:
        """``config`` are fields of SchedulerConfig, within what the memory holds.

        ``ahead``: rounds run ahead; ``in_order``: as if on kernels that need no wait.
        """
        parts, self.scratch, self.drafter_scratch = parts_of(family, drafter, block_size)
        self.executor, self.block_size = parts.executor, block_size
        self.scheduler = Scheduler(replace(parts.scheduler_config, check=True, **config), self)
        self.executor.attach(lambda seq_id: self.scheduler.sequences[seq_id].tokens)
        self.ahead = ahead
        self.executor.in_order = in_order
        self.executor.drafter.in_order = in_order
        self.num_launched = 0  # rows launched ahead
        self._decided: dict[int, str] = {}  # patterns of the next round, where they were asked for
        self.script = script
        self.salts: dict[int, Any] = {}  # sequences with the same salt say the same
        self.forked_at: dict[int, int] = {}  # the position from which a fork says its own
        self.patterns: dict[int, str] = {}
        self.logits: dict[int, dict[int, np.ndarray]] = {}  # by sequence and position
        self.forwards: list[int] = []  # target forwards of each round
        self.accepted: dict[int, list[tuple[int, int]]] = {}  # (drafted, accepted) of every row
        # of the round in flight: the target's logits, the drafter's, and how much was committed
        self._seen: dict[tuple[int, int], np.ndarray] = {}
        self._offered: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._lengths: dict[int, int] = {}

    def text(self, seq_id: int, position: int) -> int:
        """What a sequence says at a position."""
        salt = self.salts.get(seq_id, seq_id)
        if salt == "the same":
            return 7
        return Random(f"{salt} {position}").randrange(VOCABULARY)

    def depths(self, sequences: Sequence[Seq], num_waiting: int) -> list[int]:
        decided, self._decided = self._decided, {}
        for one in sequences:
            pattern = decided.get(one.seq_id)
            self.patterns[one.seq_id] = self.script(one) if pattern is None else pattern
        return [len(self.patterns[one.seq_id]) for one in sequences]

    def rests(self, sequences: Sequence[Seq], num_waiting: int) -> bool:
        self._decided = {one.seq_id: self.script(one) for one in sequences}
        if any(self._decided.values()):
            return False
        self.patterns |= self._decided
        return True

    def holds_back(self) -> None:
        pass

    def forget_round(self) -> None:
        pass

    def choose(self, seq_ids: Sequence[int], chain: Chain, logits: mx.array) -> mx.array:
        if not isinstance(self.executor.drafter, BlindDrafter):
            for row, (seq_id, line) in enumerate(zip(seq_ids, np.array(logits), strict=True)):
                self._offered[seq_id, chain.of(row)] = line
        return mx.array([self._draft(seq_id, len(chain)) for seq_id in seq_ids])

    def _draft(self, seq_id: int, place: int) -> int:
        token = self.text(seq_id, len(self.scheduler.sequences[seq_id].tokens) + place)
        return token if self.patterns[seq_id][place] == "R" else (token + 1) % VOCABULARY

    def pick(self, wanted: Sequence[Wanted], logits: mx.array) -> list[int]:
        tokens = []
        for want, line in zip(wanted, np.array(logits), strict=True):
            row = want.window.row
            position = row.certain_end + want.num_ahead
            self._seen[row.seq_id, position] = line
            tokens.append(self.text(row.seq_id, position))
        return tokens

    def needs_drafts(self, seq_ids: Iterable[int]) -> bool:
        return False

    def is_settled(self, seq_ids: Iterable[int]) -> bool:
        return False  # right and wrong drafts are counted from where a window starts

    def choose_for(self, seq_ids: Iterable[int]) -> Choose:
        return self.choose

    def choose_after(self, before: Unjudged) -> Choose:
        raise AssertionError

    def begin(self, wanted: Sequence[Wanted], logits: mx.array) -> Picks:
        return Picks(mx.array(self.pick(wanted, logits), mx.uint32))

    def take(self, seq_id: int, picked: Picked, num_ahead: int = 0) -> int:
        return picked.token

    def listen(self, row: Row, hidden: mx.array, head: Any) -> None:
        """Nobody wants to know."""

    def submit(self, prompt: Sequence[int], max_tokens: int = 30, **fields: Any) -> tuple[int, ...]:
        request = Request(f"r{len(self.salts)}", tuple(prompt), max_tokens, **fields)
        return self.scheduler.submit(request)

    def step(self) -> list[Commit]:
        """Run a round; the verdicts must be those that the patterns make."""
        self._offered.clear()
        round_ = self.scheduler.plan()
        if round_ is None:
            return self.scheduler.take_ended()
        if not self.ahead:
            self._seen.clear()
        self._lengths = {row.seq_id: row.certain_end for row in round_.rows}
        before = self.executor.forward.num_calls
        verdicts = self._run(round_)
        self.forwards.append(self.executor.forward.num_calls - before)
        for row, verdict in zip(round_.rows, verdicts, strict=True):
            self._judge(row, verdict)
        commits = self.scheduler.commit(verdicts)
        self.executor.keep(self.scheduler.launched)
        for commit in commits:
            sequence = self.scheduler.sequences[commit.seq_id]
            self._check_tokens(sequence)
            if commit.finish is not None:
                self.check_logits(sequence)
        return commits + self.scheduler.take_ended()

    def _run(self, round_: Round) -> list[Verdict]:
        if not self.ahead:
            return self.executor.run(round_, self.pick, self.choose)
        drafts = self.executor.launch(round_, self)
        ahead = self.scheduler.plan_ahead(drafts=drafts)
        if ahead is not None:
            self.num_launched += len(ahead.rows)
            self.executor.launch(ahead, self)
        return self.executor.read(round_, self)

    def step_until(self, error: type[Exception]) -> None:
        """Step until a round raises ``error``; undo that one as an engine would."""
        for _ in range(8):
            try:
                self.step()
            except error:
                self.scheduler.fail()
                return
        raise AssertionError(f"nothing raised {error.__name__}")

    def run(self, *, check_every: int = 3, most: int = 400) -> None:
        """Step until nothing is left; check everything alive now and then.

        What once went wrong in pages or states stays wrong, and shows in all later logits.
        """
        for number in range(most):
            if not self.scheduler.has_work:
                return
            self.step()
            if number % check_every == check_every - 1:
                self.check()
        raise AssertionError(f"work is left after {most} rounds")

    def _judge(self, row: Row, verdict: Verdict) -> None:
        if row.num_drafts:
            pattern = self.patterns[row.seq_id][: verdict.num_drafted]
            expected = len(pattern) - len(pattern.lstrip("R"))
            assert verdict.num_accepted == expected
            self.accepted.setdefault(row.seq_id, []).append((len(pattern), expected))
        for ahead in range(verdict.num_accepted + 1 if row.samples else 0):
            position = row.certain_end + ahead
            self.logits.setdefault(row.seq_id, {})[position] = self._seen[row.seq_id, position]

    def check(self) -> None:
        """Compare all memory of every sequence that has any with that of a run from scratch."""
        self._check_offered()
        for sequence in self.scheduler.sequences.values():
            if sequence.finish is None and sequence.computed:
                self.check_memory(sequence)
                if not self.is_launched(sequence):  # else what goes on is a token further already
                    self.check_drafter(sequence)

    def is_launched(self, sequence: Seq) -> bool:
        """Whether a row of the sequence was launched that no round has named yet."""
        return any(row.seq_id == sequence.seq_id for row in self.scheduler.launched)

    def check_logits(self, sequence: Seq) -> None:
        """Compare the logits from which each token was picked with those of a run from scratch."""
        expected = self.scratch.logits(sequence.tokens)
        for position, line in self.logits.get(sequence.seq_id, {}).items():
            if position <= len(sequence.tokens):
                np.testing.assert_array_equal(line, expected[position - 1], f"at {position}")

    def _check_tokens(self, sequence: Seq) -> None:
        start = max(sequence.num_prompt, self.forked_at.get(sequence.seq_id, 0))
        expected = [self.text(sequence.seq_id, at) for at in range(start, len(sequence.tokens))]
        assert sequence.tokens[start:] == expected

    def _check_offered(self) -> None:
        """A drafter's logits are those of a run over everything committed and drafted."""
        longest = dict(sorted(self._offered, key=lambda one: len(one[1])))
        for seq_id, drafts in longest.items():
            length = self._lengths[seq_id]
            tokens = self.scheduler.sequences[seq_id].tokens[:length]
            if isinstance(self.executor.drafter, MTPDrafter):
                head = ScratchHead(self.scratch, self.drafter_scratch.model)
                expected = head.logits(tokens, drafts)
            else:
                expected = self.drafter_scratch.logits([*tokens, *drafts])[length - 1 :]
            found = [self._offered[seq_id, drafts[:ahead]] for ahead in range(len(drafts) + 1)]
            np.testing.assert_array_equal(np.stack(found), expected)

    def check_memory(self, sequence: Seq) -> None:
        self._check_store(self.executor.store, self.scratch, sequence)

    def check_drafter(self, sequence: Seq) -> None:
        drafter = self.executor.drafter
        if isinstance(drafter, MTPDrafter):
            ScratchHead(self.scratch, self.drafter_scratch.model).check(drafter, sequence)
        elif isinstance(drafter, PeerDrafter):
            slot = sequence.slot if drafter.has_states else None
            length = drafter.ran(list(sequence.blocks), slot, sequence.computed)
            if length:
                found = read_memory(drafter.store, list(sequence.blocks), slot, length)
                expected = self.drafter_scratch.memory(sequence.tokens[:length])
                assert_same_memory(found, expected)

    def _check_store(self, store: Store, scratch: Scratch, sequence: Seq) -> None:
        computed, slot = sequence.computed + self.is_launched(sequence), sequence.slot
        fold = 0 if slot is None else self.scheduler.ledger.slots.unfolded[slot]
        found = read_memory(store, list(sequence.blocks), slot, computed)
        expected = scratch.memory(sequence.tokens[:computed])
        if fold:
            assert slot is not None
            for number, layer in enumerate(store.layers):
                if isinstance(layer, DeltaLayer):
                    found[number] = folded(layer, slot, fold)
        assert_same_memory(found, expected)


def folded(layer: DeltaLayer, slot: int, fold: int) -> list[np.ndarray]:
    """History and state of a slot once its records are part of them, computed here."""
    index = mx.array([slot])
    state = layer.slots.read("state", index)
    _, state = by_loop(read_records(layer.slots, index, fold), state, None)
    history = layer.slots.read("history", index)[0, fold : fold + layer.taps]
    return [np.array(history), np.array(state[0])]
