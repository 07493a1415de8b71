"""Which depth beside the best is tried now and then, and what pays for that.

Trials are paid from a *credit*: START, SHARE of the time spent so far (both are an account's), and
SHARE_OF_GAINS of the time that drafts have spared. Every trial is charged what it lost against the
best depth known, so what is lost by trying is bounded, however short or long the run. Where rounds
run ahead, and drafts keep them from it, a depth is charged in full from the second time on, and not
tried again before there is credit for what that lost the last time. Plain rounds,
with which all others are compared, are tried again on credit or not, and soon after drafts have
begun to pay.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .account import LEARNING, SHARE, start
from .round_times import ENOUGH, Guess, RoundTimes, alike

MOST_CHARGED = 4.0  # plain rounds a round, once: what is longer does work for once, as compiling
SHARE_OF_GAINS = 0.2  # of the time that drafts have spared, likewise
MOST_SAVED = 8.0  # plain rounds of credit
MOST_KNOWN = 7.0  # likewise that there has to be for another trial, whatever the last one lost
ROUNDS_OF_TRIAL = 2  # the first of them is not timed: it does work that plain rounds left
LONG_TRIAL = ROUNDS_OF_TRIAL + ENOUGH - 1  # rounds, of what is not measured, as credit lasts
FIRST_RETRY, LAST_RETRY = 32, 256  # rounds between trials of a depth that did not pay
FIRST_CHECK = 2  # rounds with drafts, where there were none before, until a plain one is timed
CHECK_AFTER = 12  # rounds between trials where only batches of other sizes are known


@dataclass(slots=True)
class _Tried:
    """Trials with one number of rows."""

    rounds: int = 0
    current: int = 0
    end: int = 0  # the number of rounds at which the current one ends
    least_end: int = 0  # likewise, where there is no credit left
    pays: bool = False  # drafts do, as far as is known
    most_depths: int = 0  # that there ever was room for
    retry_at: dict[int, int] = field(default_factory=dict)
    retry_gap: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # rounds when the last trial began
    dearest: dict[int, float] = field(default_factory=dict)  # plain rounds a round lost, by depth
    lost: dict[int, float] = field(default_factory=dict)  # plain rounds, by the last trial


class _Stake(NamedTuple):
    """What a round with drafts, or a trial, is to bring, and at which rate that goes without it."""

    depth: int
    tokens: float
    other_rate: float  # tokens a plain round's time
    is_trial: bool


class Kept(NamedTuple):
    """What trials were before a round was decided that may be decided again."""

    tried: _Tried
    stake: _Stake | None


class Trials:
    """A round's trial is chosen, then charged, or none is."""

    def __init__(self, times: RoundTimes, *, drafts_are_free: bool) -> None:
        self.times = times
        self.drafts_are_free = drafts_are_free
        self.credit: float | None = None  # seconds; None before the first round
        self._tried: dict[int, _Tried] = {}
        self._stake: _Stake | None = None  # of the round in flight
        self._last_stake: _Stake | None = None  # of a round with drafts that was no trial
        self._next_stake: _Stake | None = None  # of the round after it, if that is decided

    @property
    def has_stake(self) -> bool:
        """Whether the round in flight is a trial or has drafts."""
        return self._stake is not None

    @property
    def is_trial(self) -> bool:
        """Whether the round in flight is a trial."""
        return self._stake is not None and self._stake.is_trial

    def go_on(self) -> None:
        """The round is to bring what the last one was to that had drafts and was none."""
        self._stake = self._last_stake

    def is_under_way(self, num_rows: int) -> bool:
        """Whether a trial has begun that has to go on, for its first round tells nothing."""
        tried = self._tried_with(num_rows)
        return tried.current > 0 and tried.rounds < tried.least_end

    def forget_stake(self) -> None:
        """Another round begins."""
        self._stake = self._next_stake = None

    def next_round(self) -> None:
        """The round in flight has ended; the next one may have been decided already."""
        self._stake, self._next_stake = self._next_stake, None

    def look_ahead(self, num_rows: int) -> Kept:
        """Let the round after the one in flight be decided as if that had ended."""
        tried = self._tried_with(num_rows)
        kept = replace(
            tried,
            retry_at={**tried.retry_at},
            retry_gap={**tried.retry_gap},
            begun={**tried.begun},
            dearest={**tried.dearest},
            lost={**tried.lost},
        )
        tried.rounds += 1
        return Kept(kept, self._stake)

    def decide_ahead(self, num_rows: int, kept: Kept, *, stands: bool) -> None:
        """What was decided since ``look_ahead`` stands, or nothing was decided."""
        self._next_stake, self._stake = self._stake if stands else None, kept.stake
        if stands:
            self._tried_with(num_rows).rounds -= 1
        else:
            self._tried[alike(num_rows)] = kept.tried

    def choose(self, num_rows: int, tokens: Seq[float], guesses: Seq[Guess], best: int) -> int:
        """Return the depth of a round: the best, or another that is to be tried.

        ``tokens`` is what it brings and ``guesses`` what it takes, by depth.
        """
        rates = [brings / guess.ratio for brings, guess in zip(tokens, guesses, strict=True)]
        tried = self._next(num_rows, tokens, guesses, best, rates[best])
        if tried is not None:
            self._stake = _Stake(tried, tokens[tried], rates[best], is_trial=True)
            return tried
        if best:
            self._stake = _Stake(best, tokens[best], rates[0], is_trial=False)
            self._last_stake = self._stake
        return best

    def rest_ahead(self) -> None:
        """The round after the one in flight tries nothing."""
        self._next_stake = None

    def rest(self, num_rows: int, seconds: float, count: int) -> None:
        """Add the share of so many plain rounds that were not thought of."""
        if self.credit is not None:
            self.credit += SHARE * seconds
        self._tried_with(num_rows).rounds += count

    def end_round(self, num_rows: int, seconds: float) -> None:
        """Add the round's share to the credit, and what drafts spared or a trial has lost."""
        plain, tried = self.times.plain_seconds(num_rows) or seconds, self._tried_with(num_rows)
        if self.credit is None:
            self.credit = start(plain, num_rows) * plain
        self.credit += SHARE * seconds
        if (stake := self._stake) is not None:
            took = self.times.in_plain_rounds(num_rows, stake.depth, seconds)
            spared = stake.tokens / stake.other_rate - took
            if spared < -MOST_CHARGED:
                before = MOST_CHARGED
                if self.times.runs_ahead:
                    before = tried.dearest.get(stake.depth, MOST_CHARGED)
                tried.dearest[stake.depth], spared = -spared, max(spared, -before)
            if stake.is_trial:
                spared = min(0.0, spared)
                tried.lost[stake.depth] = tried.lost.get(stake.depth, 0.0) - spared
            self.credit += (1.0 if stake.is_trial else SHARE_OF_GAINS) * spared * plain
            self._stake = None
        most = MOST_SAVED if tried.rounds >= LEARNING else max(MOST_SAVED, start(plain, num_rows))
        self.credit = min(self.credit, most * plain)
        tried.rounds += 1

    def _next(
        self, num_rows: int, tokens: Seq[float], guesses: Seq[Guess], best: int, best_rate: float
    ) -> int | None:
        """Return a depth beside the best to be tried now, if there is credit for it."""
        tried = self._tried_with(num_rows)
        plain, credit = self.times.plain_seconds(num_rows) or 0.0, self.credit or 0.0
        if best and not tried.pays and guesses[best].measured and not self.drafts_are_free:
            at_least = tried.begun.get(0, -FIRST_RETRY) + FIRST_RETRY
            tried.retry_at[0] = max(tried.rounds + FIRST_CHECK, at_least)
        tried.most_depths = max(tried.most_depths, len(tokens))
        if len(tokens) == tried.most_depths:  # fewer have room where answers end: it says nothing
            tried.pays = best > 0
        goes_on = tried.rounds < (tried.end if credit > 0 else tried.least_end)
        if goes_on and tried.current < len(tokens):
            return tried.current if tried.current != best else None

        def loss(depth: int) -> float:
            return guesses[depth].ratio - tokens[depth] / best_rate

        hopes = [brings / guess.least for brings, guess in zip(tokens, guesses, strict=True)]
        likeliest = min(range(1, len(tokens)), key=loss, default=0)
        for depth in sorted(range(len(tokens)), key=loss):
            length = 1 if self.drafts_are_free else ROUNDS_OF_TRIAL
            length += self.times.runs_ahead and depth == 0  # the last launches none: it is short
            known = 0.0
            if self.times.runs_ahead:
                known = min(tried.lost.get(depth, 0.0), MOST_KNOWN)
            costs = max(length * max(0.0, loss(depth)), known) * plain
            if depth == best or (depth and (costs > credit or credit <= 0)):
                continue
            promises = hopes[depth] > best_rate
            if self.times.runs_ahead and not guesses[depth].measured:
                promises = max(hopes[depth:]) > best_rate  # what is beyond it may pay
            nearby = abs(depth - best) <= 1 or (self.times.runs_ahead and depth == likeliest)
            if self._is_due(num_rows, depth, guesses, promises=promises, nearby=nearby):
                tried.current, tried.least_end = depth, tried.rounds + length
                is_long = not (guesses[depth].measured or self.drafts_are_free)
                tried.end = tried.rounds + LONG_TRIAL if is_long else tried.least_end
                tried.lost[depth], tried.begun[depth] = 0.0, tried.rounds
                return depth
        return None

    def _is_due(
        self, num_rows: int, depth: int, guesses: Seq[Guess], *, promises: bool, nearby: bool
    ) -> bool:
        """Whether a depth that is not the best is to be tried now; sets when it will be again."""
        tried, guess = self._tried_with(num_rows), guesses[depth]
        if depth and not guess.measured and (guess.far or not guess.trusted):
            is_next = depth == 1 or guesses[depth - 1].trusted or self.drafts_are_free
            return promises and is_next and guesses[0].measured
        if depth and not (self.drafts_are_free or nearby):
            return False
        gap = tried.retry_gap.setdefault(depth, FIRST_RETRY) if guess.measured else CHECK_AFTER
        due = tried.retry_at.setdefault(depth, tried.rounds + gap)
        if tried.rounds < due:
            return False
        if guess.measured:
            tried.retry_gap[depth] = FIRST_RETRY if promises else min(2 * gap, LAST_RETRY)
            gap = tried.retry_gap[depth]
        tried.retry_at[depth] = tried.rounds + gap
        return True

    def _tried_with(self, num_rows: int) -> _Tried:
        size = alike(num_rows)
        if (found := self._tried.get(size)) is None:
            found = self._tried[size] = _Tried()
        return found
