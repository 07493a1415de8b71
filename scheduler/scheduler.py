"""Decides what runs next and what is kept: events in, rounds and commits out.

The rules of the state machine:
1. At most one round is in flight. plan() takes off, commit() or fail() lands; neither twice.
2. submit, cancel, pause and resume may come at any time; what touches a sequence in flight takes
   effect when its round lands.
3. A call that raises changes nothing.
4. With work left and nothing in flight, plan() returns a round unless all that is left is paused.
"""

import heapq
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq

from . import invariants
from .admission import RequestTooLarge, check_request
from .committing import check_verdicts, commit_round, fail_round
from .config import SchedulerConfig
from .depth import DepthPolicy, NoDrafts
from .ledger import Ledger
from .planning import plan_round
from .request import FinishReason, Request
from .round import Commit, Round, Verdict
from .sequence import Sequence
from .stats import SchedulerStats, stats_of
from .stopping import cut

__all__ = ["RequestTooLarge", "RoundInFlight", "Scheduler", "SchedulerConfig", "SchedulerStats"]


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
        sequences = [self._new_sequence(request, index) for index in range(request.n)]
        _, finish = cut(request, 0, request.emitted)
        for sequence in sequences:
            self.ledger.line.add(sequence, self.ledger.counters.rounds)
            if finish is not None:
                self._end(sequence, finish)
        self._check("submit")
        return tuple(sequence.seq_id for sequence in sequences)

    def cancel(self, seq_id: int) -> bool:
        """End a sequence, when its round lands if it is in flight. False if it had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        if sequence.in_flight:
            sequence.cancelled = True
        else:
            self._end(sequence, "cancelled")
        self._check("cancel", seq_id)
        return True

    def pause(self, seq_id: int) -> bool:
        """Give a sequence no rows until it is resumed. False if it had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        if sequence.in_flight:
            sequence.pausing = True
        elif sequence.status != "paused":
            self.ledger.pause(sequence)
        self._check("pause", seq_id)
        return True

    def resume(self, seq_id: int) -> bool:
        """End a pause. False if the sequence had ended."""
        sequence = self._live(seq_id)
        if sequence is None:
            return False
        sequence.pausing = False
        if sequence.status == "paused":
            self.ledger.wait(sequence)
        self._check("resume", seq_id)
        return True

    def plan(self, now: float = 0.0) -> Round | None:
        """Reserve what the next round needs; None if nothing can run. ``now`` is for deadlines."""
        ledger = self.ledger
        if ledger.in_flight is not None:
            raise RoundInFlight("commit or fail the round in flight before planning another")
        self._forget_ended()
        self._expire(now)
        ledger.in_flight = plan_round(ledger, self._depth)
        self._check("plan")
        return ledger.in_flight

    def commit(self, verdicts: Seq[Verdict]) -> list[Commit]:
        """Keep what the verdicts say, one for each row of the round in flight, in its order."""
        rows = self._landing().rows
        check_verdicts(rows, verdicts)
        self.ledger.in_flight = None
        commits = commit_round(self.ledger, rows, verdicts)
        self._check("commit")
        return commits

    def fail(self, seq_ids: Collection[int] | None = None) -> list[Commit]:
        """Undo the round in flight, which raised; return how sequences ended by it.

        The sequences named are to blame and end with reason "error"; the others compute their
        rows again. Without names all do, and whoever fails ``max_failures`` times, ends.
        """
        rows = self._landing().rows
        strangers = set(seq_ids or ()) - {row.seq_id for row in rows}
        if strangers:
            raise ValueError(f"sequences {sorted(strangers)} have no row in the round in flight")
        self.ledger.in_flight = None
        commits = fail_round(self.ledger, rows, seq_ids)
        self._check("fail")
        return commits

    def take_ended(self) -> list[Commit]:
        """Return, once, how sequences ended outside a commit."""
        ended, self.ledger.ended = self.ledger.ended, []
        return ended

    def stats(self) -> SchedulerStats:
        """Plain numbers, now and since the start."""
        return stats_of(self.ledger)

    def _new_sequence(self, request: Request, index: int) -> Sequence:
        tokens = [*request.prompt, *request.emitted]
        sequence = Sequence(self._next_id, request, index, tokens, len(request.prompt))
        self._next_id += 1
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
        sequences = self.ledger.sequences
        if len(sequences) > self.ledger.num_live:
            for seq_id in [one.seq_id for one in sequences.values() if one.finish is not None]:
                del sequences[seq_id]

    def _expire(self, now: float) -> None:
        deadlines = self.ledger.deadlines
        while deadlines and deadlines[0][0] <= now:
            sequence = self._live(heapq.heappop(deadlines)[1])
            if sequence is not None:
                self._end(sequence, "deadline")

    def _check(self, event: str, *seq_ids: int) -> None:
        if self.config.check:
            invariants.check(self)
