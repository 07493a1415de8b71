"""How many drafts pay: the depth of a whole round, by what it brings all rows and costs all rows.

    a row gains:  1 + a[1] + a[1] a[2] + ... + a[1] .. a[d]  tokens
    brings:       tokens(d), the sum over rows while others wait for their places
    costs:        time(d), the widest window's, for every row is padded to it
    the best depth has the most tokens(d) / time(d); 0 is as good a depth as any

When nobody waits, a row that ends early leaves its place empty: of what a round takes that spares
only the share that grows with the rows, and the rest only once the last row ends. So then a gain
counts in full as far as those of the rows with long to go have it that gain least and are least
lucky (``until_last``), and beyond that by that share.

Acceptance is learnt from verdicts (``AcceptanceRecord``), times from rounds (``RoundTimes``); time
is whatever the caller measured, there is no clock here. Plain rounds come first. A depth nobody has
measured is tried, and one that did not pay is tried again, only as far as the *credit* reaches:
SHARE of the time spent so far and a START; every trial is charged what it lost against the best
depth known. So what is lost by trying is bounded, however short or long the run. Only plain rounds,
with which all others are compared, are tried again on credit or not.

While plain rounds go on, all of this is thought over now and then only.

Drafts that cost nothing to make (looked up, not computed) are always asked for, and ``affordable``
decides once they are in hand. Whether they would have been accepted is seen without running them.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import NamedTuple

from .acceptance_record import KINDS_OF_EVIDENCE, AcceptanceRecord, kind_of_evidence
from .depth import Found
from .round import Round, Verdict
from .round_times import Guess, RoundTimes, alike
from .sequence import Sequence

START = 1.5  # plain rounds that trials may cost before anything was spent
SHARE = 0.005  # of the time spent, for trials
MOST_SAVED = 8.0  # plain rounds of credit
MARGIN = 1.1  # times as many tokens a second as a plain round, for drafts to be run at all
MANY_ROWS = 8  # from here on looking costs more than a row's words that begin to repeat bring
MARGIN_AT_END = 1.5  # over the tokens to go, for more rows: a batch of them ends by bad luck
ROUNDS_OF_TRIAL = 2  # the first of them is not timed: it does work that plain rounds left
FIRST_RETRY, LAST_RETRY = 32, 256  # rounds between trials of a depth that did not pay
GROWS, GROWS_PER_ROW, MOST_GROWS = 0.2, 0.01, 0.8  # share of a round's time that rows make
LONG_TO_GO = 0.75  # of the most tokens that a row has to go
LAST_ROUND = 0.5  # of a row's last round with drafts is for nothing
LAGGARDS = 4  # one in so many of those rows: they are the last to end
CHECK_AFTER = 12  # rounds between trials where only batches of other sizes are known
HOPELESS = 0.9  # of a plain round's tokens a second: found drafts that bring less, at the best
MOST_SKIPPED = 12  # rounds in which drafts are not thought of, where they were hopeless
LEAST_CHANCE = 0.05  # that a draft is reached and accepted, for a row to carry it


class Outcome(NamedTuple):
    """What became of one row's drafts, and what it says now."""

    seq_id: int
    num_drafted: int
    num_accepted: int
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class _Trials:
    """Trials of depths beside the best, for one number of rows."""

    rounds: int = 0
    current: int = 0
    end: int = 0  # the number of rounds at which the current one ends
    retry_at: dict[int, int] = field(default_factory=dict)
    retry_gap: dict[int, int] = field(default_factory=dict)


class _Stake(NamedTuple):
    """What a trial that is running was expected to bring, at which rate of the best depth."""

    tokens: float
    best_rate: float  # tokens a plain round's time


class AdaptiveDepth:
    """A DepthPolicy that maximises expected tokens per second; 0 is as good a depth as any.

    ``drafts_are_free``: they are asked for in any case, and ``affordable`` decides.
    """

    def __init__(self, max_depth: int, *, drafts_are_free: bool = False) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self.max_depth = max_depth
        self.drafts_are_free = drafts_are_free
        self.record = AcceptanceRecord(len(KINDS_OF_EVIDENCE) if drafts_are_free else max_depth)
        self.times = RoundTimes()
        self.credit: float | None = None  # seconds
        self._trials: dict[int, _Trials] = {}
        self._stake: _Stake | None = None  # of the round in flight, if it is a trial
        self._next_stake: _Stake | None = None  # of the round after it, if that is decided
        self._found: dict[int, Found] = {}  # drafts in hand of the round in flight
        self._last_depth = 0
        self._is_crowded = True
        self._long_to_go: set[int] = set()  # rows by which a batch ends that is not
        self._most_left = 0  # tokens that a row has to go
        self._hopeless = 0  # times in a row that no drafts could pay
        self._skipped = 0  # rounds since they were thought of
        self._last_rows = 0

    def depths(self, sequences: Seq[Sequence], num_waiting: int = 0) -> Seq[int]:
        """Return how many drafts each of the round's decoding rows carries."""
        self._stake = self._next_stake = None
        if self._skips(len(sequences), is_crowded=num_waiting > 0):
            return [0] * len(sequences)
        left = [one.request.max_tokens - one.num_generated for one in sequences]
        self._most_left = max(left, default=0)
        pairs = zip(sequences, left, strict=True)
        self._long_to_go = {one.seq_id for one, n in pairs if n >= LONG_TO_GO * self._most_left}
        rooms = [min(self.max_depth, tokens - 1) for tokens in left]
        if self.drafts_are_free:
            return rooms
        pairs = zip(sequences, rooms, strict=True)
        chances = {one.seq_id: self._chances(one.seq_id, range(room)) for one, room in pairs}
        depth = self._decide(len(sequences), self._worth(len(sequences), chances))
        is_known = self.times.plain_seconds(len(sequences)) is not None
        self._note_hopes(is_hopeless=is_known and depth == 0 and self._stake is None)
        return [min(depth, len(own)) for own in chances.values()]

    def rests(self, sequences: Seq[Sequence], num_waiting: int = 0) -> bool:
        """Decide that the round after the one in flight drafts nothing; False decides nothing."""
        size = alike(len(sequences))
        trials = self._trials_of(size)
        kept = replace(trials, retry_at={**trials.retry_at}, retry_gap={**trials.retry_gap})
        hopes = self._skipped, self._hopeless, self._last_rows, self._is_crowded
        stake = self._stake
        trials.rounds += 1  # the one in flight
        rests = not any(self.depths(sequences, num_waiting))
        self._next_stake, self._stake = self._stake, stake
        if rests:
            trials.rounds -= 1
        else:
            self._trials[size], self._next_stake = kept, None
            self._skipped, self._hopeless, self._last_rows, self._is_crowded = hopes
        return rests

    def affordable(self, num_rows: int, found: Seq[Found]) -> int:
        """Return how many of the drafts in hand a row may run; 0 for none.

        ``found`` are those of the rows that have any, of ``num_rows`` decoding rows.
        """
        self._stake = None
        self._found = {one.seq_id: one for one in found}
        chances = {one.seq_id: self._chances(one.seq_id, _kinds(one)) for one in found}
        tokens = self._worth(num_rows, chances)
        rates = [n / self.times.guess(num_rows, d).least for d, n in enumerate(tokens) if d]
        self._note_hopes(is_hopeless=max(rates, default=0.0) < HOPELESS * num_rows)
        return self._decide(num_rows, tokens)

    def observe(self, num_rows: int, seconds: float, outcomes: Iterable[Outcome]) -> None:
        """Learn from a round of decoding rows alone that took ``seconds``."""
        deepest = 0
        for outcome in outcomes:
            deepest = max(deepest, outcome.num_drafted)
            self._learn(outcome)
        if not deepest and not self.drafts_are_free:
            self.record.fade()
        self._keep_time(num_rows, deepest, seconds)
        self._keep_account(num_rows, seconds)
        self._trials_of(num_rows).rounds += 1
        self._last_depth = deepest

    def observe_round(self, round_: Round, verdicts: Seq[Verdict], seconds: float) -> None:
        """Learn from a round as it was executed; one with prompt chunks says nothing of depths."""
        if all(row.samples and len(row.tokens) == 1 for row in round_.rows):
            has_drafts = bool(self._found) or any(v.num_drafted for v in verdicts)
            outcomes = [
                Outcome(v.seq_id, v.num_drafted, v.num_accepted, v.tokens)
                for v in (verdicts if has_drafts else ())
            ]
            self.observe(len(round_.rows), seconds, outcomes)
        self._found = {}
        self._stake, self._next_stake = self._next_stake, None

    def _skips(self, num_rows: int, *, is_crowded: bool) -> bool:
        """Whether drafts were hopeless lately, in rounds like this one; counts them."""
        if self.drafts_are_free:
            may_skip = num_rows >= MANY_ROWS
        else:
            may_skip = num_rows == self._last_rows and is_crowded == self._is_crowded
        self._last_rows, self._is_crowded = num_rows, is_crowded
        if not may_skip or self._skipped >= min(self._hopeless, MOST_SKIPPED):
            return False
        self._skipped += 1
        return True

    def _note_hopes(self, *, is_hopeless: bool) -> None:
        self._skipped, self._hopeless = 0, self._hopeless + 1 if is_hopeless else 0

    def _decide(self, num_rows: int, tokens: Seq[float]) -> int:
        """Return the depth of a round that is to bring ``tokens`` by depth, or a trial's."""
        if self.times.plain_seconds(num_rows) is None:
            return 0
        guesses = [self.times.guess(num_rows, depth) for depth in range(len(tokens))]
        rates = [brings / guess.ratio for brings, guess in zip(tokens, guesses, strict=True)]
        best, margin = 0, MARGIN
        if num_rows > MANY_ROWS and not self._is_crowded:
            margin += MARGIN_AT_END / max(1, self._most_left)
        for depth, guess in enumerate(guesses):
            enough = rates[best] if best else margin * rates[0]
            if depth and guess.trusted and rates[depth] > enough:
                best = depth
        tried = self._trial(num_rows, tokens, guesses, best, rates[best])
        if tried is None:
            return best
        self._stake = _Stake(tokens[tried], rates[best])
        return tried

    def _trial(
        self, num_rows: int, tokens: Seq[float], guesses: Seq[Guess], best: int, best_rate: float
    ) -> int | None:
        """Return a depth beside the best to be tried now, if there is credit for it."""
        trials, length = self._trials_of(num_rows), 1 if self.drafts_are_free else ROUNDS_OF_TRIAL
        if trials.rounds < trials.end and trials.current < len(tokens):
            return trials.current if trials.current != best else None
        plain, credit = self.times.plain_seconds(num_rows) or 0.0, self.credit or 0.0

        def loss(depth: int) -> float:
            return guesses[depth].ratio - tokens[depth] / best_rate

        for depth in sorted(range(len(tokens)), key=loss):
            costs = length * max(0.0, loss(depth)) * plain
            if depth == best or (depth and (costs > credit or credit <= 0)):
                continue
            promises = tokens[depth] / guesses[depth].least > best_rate
            if self._is_due(num_rows, depth, best, guesses, promises=promises):
                trials.current, trials.end = depth, trials.rounds + length
                return depth
        return None

    def _is_due(
        self, num_rows: int, depth: int, best: int, guesses: Seq[Guess], *, promises: bool
    ) -> bool:
        """Whether a depth that is not the best is to be tried now; sets when it will be again."""
        trials, guess = self._trials_of(num_rows), guesses[depth]
        if depth and not guess.measured and not guess.trusted:
            is_next = depth == 1 or guesses[depth - 1].trusted or self.drafts_are_free
            return promises and is_next
        if depth and not self.drafts_are_free and abs(depth - best) > 1:
            return False
        gap = trials.retry_gap.setdefault(depth, FIRST_RETRY) if guess.measured else CHECK_AFTER
        due = trials.retry_at.setdefault(depth, trials.rounds + gap)
        if trials.rounds < due:
            return False
        if guess.measured:
            trials.retry_gap[depth] = FIRST_RETRY if promises else min(2 * gap, LAST_RETRY)
            gap = trials.retry_gap[depth]
        trials.retry_at[depth] = trials.rounds + gap
        return True

    def _keep_time(self, num_rows: int, depth: int, seconds: float) -> None:
        if depth == self._last_depth or (self.drafts_are_free and depth):
            self.times.add(num_rows, depth, seconds)
        elif self.drafts_are_free:
            self.times.add_after_drafts(num_rows, seconds)

    def _keep_account(self, num_rows: int, seconds: float) -> None:
        """Add this round's share to the credit, and charge what a trial has lost."""
        plain = self.times.plain_seconds(num_rows) or seconds
        if self.credit is None:
            self.credit = START * plain
        self.credit = min(self.credit + SHARE * seconds, MOST_SAVED * plain)
        if self._stake is not None:
            self.credit -= max(0.0, seconds - self._stake.tokens / self._stake.best_rate * plain)
            self._stake = None

    def _chances(self, seq_id: int, kinds: Iterable[int]) -> list[float]:
        """How likely each of a row's drafts is reached and accepted, as far as that is likely."""
        chances: list[float] = []
        chance = 1.0
        for kind in kinds:
            chance *= self.record.chance(seq_id, kind)
            if chance < LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    def _worth(self, num_rows: int, chances: Mapping[int, Seq[float]]) -> list[float]:
        """Tokens that a round brings by depth, up to the deepest that any row has, as they count.

        ``chances`` are those of the rows that have drafts.
        """
        tokens = [float(num_rows)]
        everybody: list[float] = []  # what those gain by which the batch ends, by place
        gained = 0.0
        grows = 1.0 if self._is_crowded else min(MOST_GROWS, GROWS + GROWS_PER_ROW * num_rows)
        for place in range(max(map(len, chances.values()), default=0)):
            gained += sum(own[place] for own in chances.values() if place < len(own))
            if not self._is_crowded:
                least = sorted(
                    own[place] if place < len(own := chances.get(seq_id, ())) else 0.0
                    for seq_id in self._long_to_go
                )[: -(-len(self._long_to_go) // LAGGARDS)]
                everybody.append(sum(least) / len(least))
            tokens.append(grows * (num_rows + gained))
            if not self._is_crowded:
                pace = until_last(everybody, self._most_left, len(self._long_to_go))
                tokens[-1] += (1 - grows) * num_rows * pace
        return tokens

    def _learn(self, outcome: Outcome) -> None:
        if not self.drafts_are_free:
            kinds = range(min(outcome.num_drafted, self.max_depth))
            self.record.learn(outcome.seq_id, kinds, outcome.num_accepted)
        elif (found := self._found.get(outcome.seq_id)) is not None:
            said = outcome.tokens[: len(found.drafts)]
            pairs = enumerate(zip(found.drafts, said, strict=False))
            right = next((place for place, (draft, token) in pairs if draft != token), len(said))
            self.record.learn(outcome.seq_id, _kinds(found)[: len(said)], right)

    def _trials_of(self, num_rows: int) -> _Trials:
        return self._trials.setdefault(alike(num_rows), _Trials())


def until_last(chances: Seq[float], num_left: int, num_rows: int) -> float:
    """Tokens a round until the last of ``num_rows`` rows has said ``num_left``.

    ``chances`` that each of a row's drafts is reached and accepted. Beside the mean, rows differ by
    luck, of which the last has least; and in its last round it has use for a part of the drafts.
    """
    mean = 1 + sum(chances)
    squares = sum((2 * place + 1) * chance for place, chance in enumerate(chances))
    deviation = sqrt(max(0.0, squares - (mean - 1) ** 2))
    rounds = num_left / mean
    extreme = max(0.0, sqrt(2 * log(num_rows)) - 0.6)  # of so many normal deviates, roughly
    return num_left / (rounds + extreme * deviation * sqrt(rounds) / mean + LAST_ROUND)


def _kinds(found: Found) -> list[int]:
    """Of each draft: as long as they are accepted, more and more words are the same."""
    return [kind_of_evidence(found.evidence + place) for place in range(len(found.drafts))]
