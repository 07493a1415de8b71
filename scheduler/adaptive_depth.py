"""How many drafts pay: learnt from acceptance by position and from the time that rounds take.

    expected tokens of a row at depth D:  1 + a[1] + a[1] a[2] + ... + a[1] .. a[D]
    worth of depth D:                     expected tokens of a round / median time of its like

Depths are tried one by one: the next deeper one only while the last was worth it, so a batch that
leaves no spare arithmetic pays for a single trial. What did not pay is tried again later, ever more
rarely. Time is whatever the caller measured; there is no clock here.
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

    def add(self, depth: int, seconds: float) -> None:
        """Keep a time. A round is slow by accident, never fast: a fast one outdates slow ones."""
        kept = self.times.get(depth, ())
        recent = [time for time in kept if time <= OUTDATED * seconds]
        self.times[depth] = deque([*recent, seconds], maxlen=SAMPLES)

    def is_judged(self, depth: int) -> bool:
        return len(self.times.get(depth, ())) >= TRIALS


class AdaptiveDepth:
    """A DepthPolicy that maximises expected tokens per second; 0 is as good a depth as any."""

    def __init__(self, max_depth: int) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self.max_depth = max_depth
        self.acceptance = [PRIOR_ACCEPTANCE] * max_depth  # by position, given the one before
        self._rows: OrderedDict[int, list[float]] = OrderedDict()  # seq_id: [accepted, judged]
        self._cells: dict[int, _Cell] = {}
        self._choice: tuple[int, int] | None = None  # (number of rows, depth) until observed

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        """Return how many drafts this row carries in a round of ``num_rows`` decoding rows."""
        if self._choice is None or self._choice[0] != num_rows:
            self._choice = (num_rows, self._choose(num_rows))
        chance, depth = 1.0, 0
        for position in range(self._choice[1]):
            chance *= self._row_acceptance(sequence.seq_id, position)
            if chance < LEAST_CHANCE:
                break
            depth = position + 1
        return depth

    def observe(self, num_rows: int, seconds: float, outcomes: Iterable[Outcome]) -> None:
        """Learn from a round of decoding rows alone that took ``seconds``."""
        deepest = 0
        for outcome in outcomes:
            deepest = max(deepest, outcome.num_drafted)
            self._learn(outcome)
        cell = self._cells.setdefault(_alike(num_rows), _Cell())
        cell.rounds += 1
        cell.add(deepest, seconds / num_rows)
        self._choice = None

    def observe_round(self, round_: Round, verdicts: Seq[Verdict], seconds: float) -> None:
        """Learn from a round as it was executed; one with prompt chunks says nothing of depths."""
        if all(row.samples and len(row.tokens) == 1 for row in round_.rows):
            outcomes = [Outcome(v.seq_id, v.num_drafted, v.num_accepted) for v in verdicts]
            self.observe(len(round_.rows), seconds, outcomes)

    def worth(self, num_rows: int, depth: int) -> float:
        """Expected tokens a second of one row at ``depth``; 0 while that is unknown."""
        times = self._cells[_alike(num_rows)].times.get(depth)
        return self._expected(depth) / median(times) if times else 0.0

    def _choose(self, num_rows: int) -> int:
        cell = self._cells.setdefault(_alike(num_rows), _Cell())
        if not cell.is_judged(0):
            # start drafting at once: with few rows it nearly always pays, and 0 is learnt soon
            return 0 if len(cell.times.get(1, ())) >= TRIALS else 1
        worths = {
            depth: self.worth(num_rows, depth) for depth in cell.times if cell.is_judged(depth)
        }
        best = max(worths, key=lambda depth: worths[depth])
        for depth in range(1, self.max_depth + 1):
            if not cell.is_judged(depth):
                return depth if worths[depth - 1] >= NEARLY * worths[best] else best
            if self._is_due(cell, depth, worths, best):
                return depth
        return best

    def _is_due(self, cell: _Cell, depth: int, worths: dict[int, float], best: int) -> bool:
        """Whether a known depth beside the best is to be tried again now."""
        if depth == best or abs(depth - best) > 1:
            return False
        gap = cell.retry_gap.setdefault(depth, FIRST_RETRY)
        due = cell.retry_at.setdefault(depth, cell.rounds + gap)
        if cell.rounds < due:
            return False
        pays = worths[depth] >= NEARLY * worths[best]
        gap = FIRST_RETRY if pays else min(2 * gap, LAST_RETRY)
        cell.retry_gap[depth], cell.retry_at[depth] = gap, cell.rounds + gap
        return True

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
