"""Decides what runs next and what is kept: events in, rounds and commits out.

The rules of the state machine:
1. At most one round is in flight. plan() takes off, commit() or fail() lands; neither twice. While
   it flies, plan_ahead() may name rows of the next one.
2. submit, cancel, pause and resume may come at any time; what touches a sequence in flight takes
   effect when its round lands.
3. A call that raises changes nothing.
4. With work left and nothing in flight, plan() returns a round unless all that is left is paused.
"""

import heapq
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from typing import Any

from . import invariants
from .admission import RequestTooLarge, check_request
from .ahead import plan_ahead
from .committing import check_verdicts, commit_round, fail_round
from .config import SchedulerConfig
from .depth import DepthPolicy, NoDrafts
from .dump import dump_of
from .journal import Journal
from .ledger import Ledger
from .planning import plan_round
from .preemption import preempt
from .prefix_sharing import share_prefix
from .request import FinishReason, Request
from .round import Commit, Round, Row, Verdict
from .sequence import Group, Sequence
from .stats import SchedulerStats, stats_of
from .stopping import cut

__all__ = ["RequestTooLarge", "RoundInFlight", "Scheduler", "SchedulerConfig", "SchedulerStats"]

FEW_DEADLINES = 100  # of sequences that have ended, which may be kept


class RoundInFlight(RuntimeError):
    """The call needs the round in flight to land first."""


class NoRoundInFlight(RuntimeError):
    """There is no round to commit or to fail."""


class Scheduler:
    """Owns every sequence, block id and slot id."""

    def __init__(self, config: SchedulerConfig, depth: DepthPolicy | None = None) -> None:
        self.config = config
        self.ledger = Ledger(config)
        self._depth: DepthPolicy = depth or NoDrafts()
        self._next_id = 1
        self._journal: Journal | None = None
        if config.check:
            self._journal = self.ledger.blocks.journal = self.ledger.slots.journal = Journal()

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """Live sequences by id, and until the next plan those that have ended."""
        return self.ledger.sequences

    @property
    def has_work(self) -> bool:
        """Whether step after step still brings something; False if all that is left is paused."""
        ledger = self.ledger
        return (
            ledger.in_flight is not None
            or bool(ledger.ended)
            or ledger.num_live > len(ledger.paused)
        )

    def submit(self, request: Request) -> tuple[int, ...]:
        """Let a request wait; return the ids of its sequences, one per sample.

        Raises RequestTooLarge if it can never fit, ValueError if it makes no sense.
        """
        check_request(self.ledger, request)
        self._begin("submit", self._next_id)
        group = Group()
        sequences = [self._new_sequence(request, group) for _ in range(request.n)]
        _, finish = cut(request, 0, request.emitted)
        for sequence in sequences:
            self.ledger.line.add(sequence, self.ledger.counters.rounds)
            if finish is not None:
                self._end(sequence, finish)
        self._check()
        return tuple(sequence.seq_id for sequence in sequences)

    def cancel(self, seq_id: int) -> bool:
        """End a sequence, when its round lands if it is in flight. False if it had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        self._begin("cancel", seq_id)
        if sequence.in_flight:
            sequence.cancelled = True
        else:
            self._end(sequence, "cancelled")
        self._check()
        return True

    def fork(self, seq_id: int) -> int:
        """Let a new sequence go on from where a live one stands; return its id.

        It shares blocks and state until either writes, and is the request's next sample. Where a
        row of its parent is launched ahead, it takes what the prefix cache has instead: the state
        stands a token further already. Raises KeyError for a sequence that has ended, RoundInFlight
        for one whose row is running.
        """
        parent = self._live(seq_id)
        if parent is None:
            raise KeyError(f"sequence {seq_id} is not live: there is nothing to fork")
        if parent.in_flight:
            raise RoundInFlight(f"sequence {seq_id} has a row in flight: fork it after the commit")
        self._begin("fork", seq_id)
        child = self._new_sequence(parent.request, parent.group)
        child.tokens = parent.tokens[:]
        child.num_cached, child.started = parent.num_cached, parent.started
        if seq_id not in self.ledger.ahead:
            share_prefix(self.ledger, parent, child)
        self.ledger.line.add(child, self.ledger.counters.rounds)
        self._check()
        return child.seq_id

    def pause(self, seq_id: int) -> bool:
        """Give a sequence no rows until it is resumed. False if it had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        if sequence.in_flight:
            sequence.pausing = True
        elif sequence.status != "paused":
            self.ledger.pause(sequence)
        self._check()
        return True

    def resume(self, seq_id: int) -> bool:
        """End a pause. False if the sequence had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        sequence.pausing = False
        if sequence.status == "paused":
            self.ledger.wait(sequence)
        self._check()
        return True

    def preempt(self, seq_id: int) -> bool:
        """Take a sequence's blocks and slot; it computes its tokens again later.

        False if it has ended. Raises RoundInFlight if its row is running.
        """
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        if sequence.in_flight:
            raise RoundInFlight(f"sequence {seq_id} has a row in flight: preempt it afterwards")
        self._begin("preempt", seq_id)
        preempt(self.ledger, sequence)
        self._check()
        return True

    def clear_cache(self) -> None:
        """Forget every block and checkpoint that no sequence holds."""
        self._begin("clear_cache")
        if self.ledger.index is not None:
            self.ledger.index.clear()
        self._check()

    def plan(self, now: float = 0.0) -> Round | None:
        """Reserve what the next round needs; None if nothing can run. ``now`` is for deadlines."""
        ledger = self.ledger
        if ledger.in_flight is not None:
            raise RoundInFlight("commit or fail the round in flight before planning another")
        self._begin("plan", ledger.counters.rounds + 1)
        self._forget_ended()
        self._expire(now)
        ledger.in_flight = plan_round(ledger, self._depth)
        self._check()
        return ledger.in_flight

    def plan_ahead(self, *, drafts: bool = True) -> Round | None:
        """Say which rows of the next round can be launched while the round in flight runs.

        Each stands where its sequence will if the round in flight gives it one token, which is
        ``UNKNOWN`` as yet; None if there is no such row. The rounds to come name each of them again
        as launched, unless its sequence loses what it holds before: its result is then nobody's.
        ``drafts``: whether rows of the round in flight that may run drafts do.
        """
        round_ = self._landing()
        self._begin("plan_ahead", self.ledger.counters.rounds)
        ahead = plan_ahead(self.ledger, round_, self._depth, drafts=drafts)
        self._check()
        return ahead

    @property
    def launched(self) -> Collection[Row]:
        """Rows that plan_ahead() gave out and no round has named yet."""
        return self.ledger.ahead.values()

    def commit(self, verdicts: Seq[Verdict]) -> list[Commit]:
        """Keep what the verdicts say, one for each row of the round in flight, in its order."""
        rows = self._landing().rows
        check_verdicts(rows, verdicts)
        self._begin("commit", self.ledger.counters.rounds)
        self.ledger.in_flight = None
        commits = commit_round(self.ledger, rows, verdicts)
        self._check()
        return commits

    def fail(self, seq_ids: Collection[int] | None = None) -> list[Commit]:
        """Undo the round in flight, which raised; return how sequences ended by it.

        The sequences named are to blame and end with reason "error"; the others compute their
        rows again. Without names all do, and whoever fails ``max_failures`` times, ends.
        """
        round_ = self._landing()
        strangers = set(seq_ids or ()) - {row.seq_id for row in round_.rows}
        if strangers:
            raise ValueError(f"sequences {sorted(strangers)} have no row in the round in flight")
        self._begin("fail", self.ledger.counters.rounds)
        self.ledger.in_flight = None
        self._depth.forget_round()
        commits = fail_round(self.ledger, round_, seq_ids)
        self._check()
        return commits

    def take_ended(self) -> list[Commit]:
        """Return, once, how sequences ended outside a commit."""
        ended, self.ledger.ended = self.ledger.ended, []
        return ended

    def stats(self) -> SchedulerStats:
        """Plain numbers, now and since the start."""
        return stats_of(self.ledger)

    def dump(self) -> dict[str, Any]:
        """Every sequence, pool and sharing, as plain lists, dictionaries, numbers and strings."""
        return dump_of(self.ledger)

    def _new_sequence(self, request: Request, group: Group) -> Sequence:
        tokens = [*request.prompt, *request.emitted]
        index, num_prompt = group.num_samples, len(request.prompt)
        sequence = Sequence(self._next_id, request, index, tokens, num_prompt, group)
        self._next_id += 1
        group.num_samples += 1
        group.members.append(sequence)
        ledger = self.ledger
        ledger.sequences[sequence.seq_id] = sequence
        ledger.num_live += 1
        ledger.line.enter(request.tenant)
        if request.deadline is not None:
            heapq.heappush(ledger.deadlines, (request.deadline, sequence.seq_id))
        return sequence

    def _live(self, seq_id: int) -> Sequence | None:
        sequence = self.ledger.sequences.get(seq_id)
        return None if sequence is None or sequence.finish is not None else sequence

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        self.ledger.end(sequence, reason)
        self.ledger.ended.append(Commit(sequence.seq_id, finish=reason))

    def _landing(self) -> Round:
        if self.ledger.in_flight is None:
            raise NoRoundInFlight("plan() returns the round that commit() and fail() are about")
        return self.ledger.in_flight

    def _forget_ended(self) -> None:
        ledger, sequences = self.ledger, self.ledger.sequences
        if ledger.over:
            for seq_id in ledger.over:
                del sequences[seq_id]
            ledger.over.clear()
            if len(ledger.deadlines) > 2 * ledger.num_live + FEW_DEADLINES:
                ledger.deadlines = [one for one in ledger.deadlines if one[1] in sequences]
                heapq.heapify(ledger.deadlines)

    def _expire(self, now: float) -> None:
        deadlines = self.ledger.deadlines
        while deadlines and deadlines[0][0] <= now:
            sequence = self._live(heapq.heappop(deadlines)[1])
            if sequence is not None:
                self._end(sequence, "deadline")

    def _begin(self, event: str, *seq_ids: int) -> None:
        if self._journal is not None:
            self._journal.begin(" ".join([event, *map(str, seq_ids)]))

    def _check(self) -> None:
        if self.config.check:
            invariants.check(self)
