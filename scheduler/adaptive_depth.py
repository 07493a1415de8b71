"""How many drafts pay: learnt from acceptance by position and from the time that rounds take.

    expected tokens of a row at depth D:  1 + a[1] + a[1] a[2] + ... + a[1] .. a[D]
    worth of depth D:                     expected tokens of a round / median time of its like

Depths are tried one by one: the next deeper one only while the last was worth it, so a batch that
leaves no spare arithmetic pays for a single trial. What did not pay is tried again later, ever more
rarely. A batch of a size that is new takes over what is known of similar sizes, and checks it
little by little. Time is whatever the caller measured; there is no clock here.

Drafts that cost nothing to make (looked up, not computed) are always asked for. What they cost is
the wider window, so ``affordable`` is asked afterwards, once it is known which rows have any.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from .round import Round, Verdict
from .sequence import Sequence

PRIOR_ACCEPTANCE = 0.7
SAMPLES = 9  # times kept for each (rows, depth)
TRIALS = 3  # times before a depth is judged; the first may hold one-off costs
FIRST_RETRY, LAST_RETRY = 32, 256  # rounds between trials of a depth that did not pay
ROUNDS_OF_TRIAL = 2  # the first of them is not timed
CHECK_AFTER = 12  # rounds between trials of a depth that is known from batches of other sizes only
SIMILAR = 2.0  # times as many rows at most: what is known of those is taken over
NEARLY = 0.97  # of the best worth: close enough to try one deeper
OUTDATED = 1.5  # times so much longer than the newest one are forgotten
LEAST_CHANCE = 0.05  # that a draft is reached and accepted, for a row to carry it
OVERALL_WEIGHT = 0.02
ROW_STRENGTH = 6.0  # drafts of its own after which a row counts as much as all rows
MAX_ROWS_KNOWN = 4096


class Outcome(NamedTuple):
    """What became of one row's drafts."""

    seq_id: int
    num_drafted: int
    num_accepted: int


@dataclass(slots=True)
class _Cell:
    """What is known of rounds with so many rows, by depth."""

    times: dict[int, deque[float]] = field(default_factory=dict)
    rounds: int = 0
    retry_at: dict[int, int] = field(default_factory=dict)
    retry_gap: dict[int, int] = field(default_factory=dict)
    tried_at: dict[int, int] = field(default_factory=dict)
    trial: tuple[int, int] = (0, 0)  # a depth, and the number of rounds at which its trial ends

    def add(self, depth: int, seconds: float) -> None:
        """Keep a time. A round is slow by accident, never fast: a fast one outdates slow ones."""
        self.tried_at[depth] = self.rounds
        kept = self.times.get(depth, ())
        recent = [time for time in kept if time <= OUTDATED * seconds]
        self.times[depth] = deque([*recent, seconds], maxlen=SAMPLES)

    def is_judged(self, depth: int) -> bool:
        return len(self.times.get(depth, ())) >= TRIALS


class AdaptiveDepth:
    """A DepthPolicy that maximises expected tokens per second; 0 is as good a depth as any.

    ``drafts_are_free``: they are asked for in any case, and ``affordable`` decides.
    """

    def __init__(self, max_depth: int, *, drafts_are_free: bool = False) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self.max_depth = max_depth
        self.drafts_are_free = drafts_are_free
        self.acceptance = [PRIOR_ACCEPTANCE] * max_depth  # by position, given the one before
        self._rows: OrderedDict[int, list[float]] = OrderedDict()  # seq_id: [accepted, judged]
        self._cells: dict[int, _Cell] = {}
        self._choice: tuple[int, int] | None = None  # (number of rows, depth) until observed
        # a round after one of another depth also does that one's work (its folds): it is not timed
        self._last_depth: int | None = None

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        """Return how many drafts this row carries in a round of ``num_rows`` decoding rows."""
        if self._choice is None or self._choice[0] != num_rows:
            best = self.max_depth if self.drafts_are_free else self._choose(num_rows)
            self._choice = (num_rows, best)
        chance, depth = 1.0, 0
        for position in range(self._choice[1]):
            chance *= self._row_acceptance(sequence.seq_id, position)
            if chance < LEAST_CHANCE:
                break
            depth = position + 1
        return depth

    def affordable(self, num_rows: int, lengths: Seq[int]) -> int:
        """Return how many of the drafts in hand a row may run; 0 for none.

        ``lengths`` are those of the rows that have any, of ``num_rows`` decoding rows. All rows pay
        for the widest window: a few drafts among many rows seldom do.
        """
        cell = self._cells.setdefault(_alike(num_rows), _Cell())
        best, best_worth, least_time = 0, 0.0, 0.0
        for depth in range(max(lengths, default=0) + 1):
            tokens = num_rows - len(lengths) + sum(self._expected(min(n, depth)) for n in lengths)
            if tokens <= best_worth * least_time:  # even if it took no longer than a lesser depth
                continue
            seconds = None if self._is_outdated(cell, depth) else self._time(num_rows, depth)
            if seconds is None:
                return depth
            least_time = max(least_time, seconds)
            if tokens / seconds > best_worth:
                best, best_worth = depth, tokens / seconds
        return best

    def observe(self, num_rows: int, seconds: float, outcomes: Iterable[Outcome]) -> None:
        """Learn from a round of decoding rows alone that took ``seconds``."""
        deepest = 0
        for outcome in outcomes:
            deepest = max(deepest, outcome.num_drafted)
            self._learn(outcome)
        cell = self._cells.setdefault(_alike(num_rows), _Cell())
        cell.rounds += 1
        if self.drafts_are_free or deepest == self._last_depth:
            cell.add(deepest, seconds / num_rows)
        self._last_depth = deepest
        self._choice = None

    def observe_round(self, round_: Round, verdicts: Seq[Verdict], seconds: float) -> None:
        """Learn from a round as it was executed; one with prompt chunks says nothing of depths."""
        if all(row.samples and len(row.tokens) == 1 for row in round_.rows):
            outcomes = [Outcome(v.seq_id, v.num_drafted, v.num_accepted) for v in verdicts]
            self.observe(len(round_.rows), seconds, outcomes)

    def worth(self, num_rows: int, depth: int) -> float:
        """Expected tokens a second of one row at ``depth``; 0 while that is unknown."""
        seconds = self._time(num_rows, depth)
        return 0.0 if seconds is None else self._expected(depth) / seconds

    def _choose(self, num_rows: int) -> int:
        cell = self._cells.setdefault(_alike(num_rows), _Cell())
        worths = {depth: self.worth(num_rows, depth) for depth in range(self.max_depth + 1)}
        if not worths[0]:
            # start drafting at once: with few rows it nearly always pays, and 0 is learnt soon
            return 0 if len(cell.times.get(1, ())) >= TRIALS else 1
        best = max(worths, key=lambda depth: worths[depth])
        depth, end = cell.trial
        if cell.rounds < end:
            return depth
        for depth in range(self.max_depth + 1):
            if not worths[depth]:
                return depth if worths[depth - 1] >= NEARLY * worths[best] else best
            if self._is_due(cell, depth, worths, best):
                cell.trial = (depth, cell.rounds + ROUNDS_OF_TRIAL)
                return depth
        return best

    def _is_due(self, cell: _Cell, depth: int, worths: dict[int, float], best: int) -> bool:
        """Whether a known depth beside the best, or 0, is to be tried again now."""
        if depth == best or (depth and abs(depth - best) > 1):
            return False
        if cell.is_judged(depth):
            gap = cell.retry_gap.setdefault(depth, FIRST_RETRY)
            pays = worths[depth] >= NEARLY * worths[best]
            next_gap = FIRST_RETRY if pays else min(2 * gap, LAST_RETRY)
        else:
            gap = next_gap = CHECK_AFTER
        due = cell.retry_at.setdefault(depth, cell.rounds + gap)
        if cell.rounds < due:
            return False
        if cell.is_judged(depth):
            cell.retry_gap[depth] = next_gap
        cell.retry_at[depth] = cell.rounds + next_gap
        return True

    def _is_outdated(self, cell: _Cell, depth: int) -> bool:
        """Whether a depth was last tried so long ago that it is worth another trial."""
        return cell.is_judged(depth) and cell.rounds - cell.tried_at[depth] > LAST_RETRY

    def _time(self, num_rows: int, depth: int) -> float | None:
        """Seconds a row of rounds at ``depth``; None while that is unknown.

        What was not measured with so many rows is taken from the next similar number of rows, in
        proportion to the times of another depth that is known of both.
        """
        size = _alike(num_rows)
        cell = self._cells.setdefault(size, _Cell())
        if cell.is_judged(depth):
            return median(cell.times[depth])
        others = [
            (max(size, other) / min(size, other), known)
            for other, known in self._cells.items()
            if other != size and known.is_judged(depth)
        ]
        if not others:
            return None
        distance, nearest = min(others, key=lambda one: one[0])
        if distance > SIMILAR:
            return None
        shared = [d for d in nearest.times if nearest.is_judged(d) and cell.is_judged(d)]
        scale = [median(cell.times[d]) / median(nearest.times[d]) for d in shared]
        return median(nearest.times[depth]) * (median(scale) if scale else 1.0)

    def _expected(self, depth: int) -> float:
        chance, expected = 1.0, 1.0
        for position in range(depth):
            chance *= self.acceptance[position]
            expected += chance
        return expected

    def _row_acceptance(self, seq_id: int, position: int) -> float:
        accepted, judged = self._rows.get(seq_id, (0.0, 0.0))
        prior = ROW_STRENGTH * self.acceptance[position]
        return (accepted + prior) / (judged + ROW_STRENGTH)

    def _learn(self, outcome: Outcome) -> None:
        judged = min(outcome.num_accepted + 1, outcome.num_drafted, self.max_depth)
        for position in range(judged):
            hit = position < outcome.num_accepted
            self.acceptance[position] += OVERALL_WEIGHT * (hit - self.acceptance[position])
        if judged:
            own = self._rows.setdefault(outcome.seq_id, [0.0, 0.0])
            own[0] += outcome.num_accepted
            own[1] += judged
            if len(self._rows) > MAX_ROWS_KNOWN:
                self._rows.popitem(last=False)


def _alike(num_rows: int) -> int:
    """Rounds of 1 to 8 rows are told apart; wider ones by the half power of two they fill."""
    if num_rows <= 8:
        return num_rows
    power = 1 << (num_rows.bit_length() - 1)
    return power if num_rows < power * 3 // 2 else power * 3 // 2
