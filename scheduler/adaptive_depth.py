"""How many drafts pay: the depth of a whole round, by what it brings all rows and costs all rows.

    a row gains:  1 + a[1] + a[1] a[2] + ... + a[1] .. a[d]  tokens
    brings:       tokens(d), the sum over rows while others wait for their places
    costs:        time(d), the widest window's, for every row is padded to it
    the best depth has the most tokens(d) / time(d); 0 is as good a depth as any

When nobody waits, a row that ends early leaves its place empty, and a gain counts less (``worth``).

Acceptance is learnt from verdicts (``AcceptanceRecord``), times from rounds (``RoundTimes``); time
is whatever the caller measured, there is no clock here. Plain rounds come first. What nobody has
measured, or did not pay before, is tried now and then (``Trials``). What has come of it is kept for
each number of rows (``Account``): whatever was believed, drafts that lose rest.

While plain rounds go on, all of this is thought over now and then only (``Rest``).

Drafts that cost nothing to make (looked up, not computed) are asked for unless already that costs
more than they bring (``Looking``), and ``affordable`` decides once they are in hand. Whether they
would have been accepted is seen without running them.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from .acceptance_record import KINDS_OF_EVIDENCE, LEAST_CHANCE, AcceptanceRecord, kinds_of
from .account import Account, start
from .depth import Found
from .looking import ROUNDS_TO_COMPARE, Looking
from .rest import TIMED, Rest, longest
from .round import Round, Verdict
from .round_times import RoundTimes, alike
from .sequence import Sequence
from .stay import Stay
from .trials import Trials
from .worth import Worth, worth

MARGIN, MARGIN_PER_ROW = 1.01, 0.002  # times a plain round's tokens a second, for drafts at all
MARGIN_TO_END = 0.95  # likewise, where rounds run ahead and drafts go on: to end and begin is dear
MARGIN_AT_END = 1.0  # over the tokens to go, for more rows: a batch of them ends by bad luck
MANY_ROWS = 8  # of which some have a last one that is unlucky
LOOKED_FOR = 1  # rows, always: with more, looking costs more than what begins to repeat brings
LONG_TO_GO = 0.75  # of the most tokens that a row has to go
HOPELESS = 0.9  # of a plain round's tokens a second: found drafts that bring less, at the best


class Outcome(NamedTuple):
    """What became of one row's drafts, and what it says now."""

    seq_id: int
    num_drafted: int
    num_accepted: int
    tokens: tuple[int, ...] = ()


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
        self.trials = Trials(self.times, drafts_are_free=drafts_are_free)
        self._found: dict[int, Found] = {}  # drafts in hand of the round in flight
        self._last_depth = 0
        self._rows_before = 0
        self._long_to_go: set[int] = set()  # rows by which a batch ends that is not
        self._most_left = 0  # tokens that a row has to go
        self._rooms: dict[int, int] = {}  # drafts that rows can use, where some have few to go
        self._rest = Rest()
        self._stay = Stay()
        self._rests = False  # in the round in flight drafts are not thought of
        self._next_rests = False  # nor in the one after it, if that is decided
        self._accounts: dict[int, Account] = {}
        self._looking: dict[int, Looking] = {}
        # Whether the round in flight was launched ahead of the one before it, and whether it is
        # itself one that another is launched ahead of.
        self._launched = self._launches = False
        self._may_launch = False  # whether that was asked, while it was in flight
        self._drafting: set[int] = set()  # numbers of rows with which drafts were the best
        # Worth of the round in flight, if drafted
        self._expected: tuple[float, float] | None = None

    def depths(self, sequences: Seq[Sequence], num_waiting: int = 0) -> Seq[int]:
        """Return how many drafts each of the round's decoding rows carries."""
        self.trials.forget_stake()
        self._next_rests = False
        num_rows, is_crowded = len(sequences), bool(num_waiting)
        self._rests = self._goes_on_resting(num_rows, is_crowded=is_crowded)
        if not self._rests:
            self._count_idle()
            self._rests = self._spares(num_rows)
        if self._rests:
            return [0] * num_rows
        left = [one.request.max_tokens - one.num_generated for one in sequences]
        self._most_left = max(left, default=0)
        pairs = zip(sequences, left, strict=True)
        self._long_to_go = {one.seq_id for one, n in pairs if n >= LONG_TO_GO * self._most_left}
        rooms = [min(self.max_depth, tokens - 1) for tokens in left]
        self._rooms = {}
        if min(rooms, default=self.max_depth) < self.max_depth:
            self._rooms = {one.seq_id: n for one, n in zip(sequences, rooms, strict=True)}
        if self.drafts_are_free:
            self._rest.left = 0  # of other rows: what is found says how long the next one is
            return rooms
        if self._stays(num_rows, is_crowded=is_crowded):
            return [self._stay.depth] * num_rows
        pairs = zip(sequences, rooms, strict=True)
        chances = {one.seq_id: self.record.chances(one.seq_id, range(room)) for one, room in pairs}
        if not any(chances.values()):  # or nobody would ever find out that drafts are better now
            pairs = zip(sequences, rooms, strict=True)
            chances = {one.seq_id: [LEAST_CHANCE] * min(1, room) for one, room in pairs}
        depth = self._decide(num_rows, self._worth(num_rows, chances))
        is_known = self.times.plain_seconds(num_rows) is not None
        is_hopeless = is_known and depth == 0 and not self.trials.has_stake
        self._note_hopes(num_rows, is_hopeless=is_hopeless)
        if depth and self.times.runs_ahead and not self.trials.is_trial:
            self._stay.begin(depth, num_rows, is_crowded=is_crowded, expected=self._expected)
        return [min(depth, len(own)) for own in chances.values()]

    def rests(self, sequences: Seq[Sequence], num_waiting: int = 0) -> bool:
        """Decide that the round after the one in flight drafts nothing; False decides nothing."""
        rest, is_crowded = self._rest, num_waiting > 0
        if rest.passes(len(sequences), is_crowded=is_crowded):
            self._next_rests = self._launches = self._may_launch = True
            return True
        self.times.runs_ahead = self._may_launch = True
        kept = rest.keep()
        if self._goes_on_resting(len(sequences), is_crowded=is_crowded):
            self.trials.rest_ahead()
            self._next_rests = self._launches = True
            return True
        rest.take_back(kept)
        self._launches = self._rests_next(sequences, num_waiting)
        if not self._launches:
            rest.take_back(kept)
        return self._launches

    def _rests_next(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        """Think of the round after the one in flight: what is decided stands if it rests."""
        self._count_idle()
        kept, rested = self.trials.look_ahead(len(sequences)), self._rests
        rests = not any(self.depths(sequences, num_waiting))
        self._stay.end()  # what was decided stands only if nobody drafts
        self._rests, self._next_rests = rested, rests and self._rests
        self.trials.decide_ahead(len(sequences), kept, stands=rests)
        return rests

    def holds_back(self) -> None:
        """Not all rows of the round after the one in flight are launched: that is timed as such."""
        self._launches = False

    def forget_round(self) -> None:
        """The round in flight has failed, and all that was decided of the next one."""
        self.trials.forget_stake()
        self._stay.end()
        self._launched = self._launches = self._may_launch = False
        self._rests = self._next_rests = False
        self._found, self._expected, self._last_depth = {}, None, 0

    def affordable(self, num_rows: int, found: Seq[Found]) -> int:
        """Return how many of the drafts in hand a row may run; 0 for none.

        ``found`` are those of the rows that have any, of ``num_rows`` decoding rows.
        """
        self.trials.forget_stake()
        self._count_idle()
        self._found = {one.seq_id: one for one in found}
        chances = {one.seq_id: self.record.chances(one.seq_id, kinds_of(one)) for one in found}
        worth = self._worth(num_rows, chances)
        rates = [n / self.times.guess(num_rows, d).least for d, n in enumerate(worth.tokens) if d]
        is_hopeless = max(rates, default=0.0) < HOPELESS * num_rows
        depth, rest = self._decide(num_rows, worth), self._rest
        before, is_hopeless = rest.length, is_hopeless or self._account(num_rows).rests
        if num_rows <= LOOKED_FOR:
            rest.left = 0
        elif is_hopeless or depth or self.trials.has_stake:
            self._note_hopes(num_rows, is_hopeless=is_hopeless)
        else:
            rest.note_hopes(before)
        return depth

    def observe(self, num_rows: int, seconds: float, outcomes: Iterable[Outcome]) -> None:
        """Learn from a round of decoding rows alone that took ``seconds``."""
        self._count_idle()
        deepest = accepted = 0
        for outcome in outcomes:
            deepest = max(deepest, outcome.num_drafted)
            accepted += outcome.num_accepted
            self._learn(outcome)
        if not deepest and not self.drafts_are_free:
            self.record.fade()
        self._settle(num_rows, deepest, accepted, seconds)
        self._keep_time(num_rows, deepest, seconds)
        self.trials.end_round(num_rows, seconds)
        self._last_depth = deepest

    def observe_round(self, round_: Round, verdicts: Seq[Verdict], seconds: float) -> None:
        """Learn from a round as it was executed; one with prompt chunks says nothing of depths."""
        rest = self._rest
        if self._rests and rest.left >= TIMED and len(round_.rows) == self._rows_before:
            rest.rounds += 1
            rest.seconds += seconds
            self._last_depth = 0
            self._launched, self._launches, self._may_launch = self._launches, False, False
            self._rests, self._next_rests = self._next_rests, False
            return
        decodes = all(row.decodes for row in round_.rows)
        may_count = self.times.runs_ahead and self.drafts_are_free and decodes
        if may_count and not (self._found or self._last_depth):
            self._looking_with(len(round_.rows)).add(seconds, looked=not self._rests)
        if decodes:
            has_drafts = bool(self._found) or any(v.num_drafted for v in verdicts)
            outcomes = [self._outcome(verdict) for verdict in (verdicts if has_drafts else ())]
            self.observe(len(round_.rows), seconds, outcomes)
        else:
            self._last_depth = 0  # drafts that come next begin anew
        self._found = {}
        self.trials.next_round()
        self._launched, self._launches, self._may_launch = self._launches, False, False
        self._rests, self._next_rests = self._next_rests, False

    def _outcome(self, verdict: Verdict) -> Outcome:
        """What of a verdict counts: drafts beyond an answer's end brought nothing."""
        drafted, accepted = verdict.num_drafted, verdict.num_accepted
        if self._rooms:
            room = self._rooms.get(verdict.seq_id, drafted)
            drafted, accepted = min(drafted, room), min(accepted, room)
        return Outcome(verdict.seq_id, drafted, accepted, verdict.tokens)

    def _count_idle(self) -> None:
        """Count rounds that have passed, all of as many rows, in what is thought of drafts."""
        rest = self._rest
        if count := rest.rounds:
            seconds, rest.rounds, rest.seconds = rest.seconds, 0, 0.0
            self.times.cell(self._rows_before).rounds += count
            self.trials.rest(self._rows_before, seconds, count)
            self._account(self._rows_before).wait(count)
            self.record.fade(count)

    def _goes_on_resting(self, num_rows: int, *, is_crowded: bool) -> bool:
        """Whether the next round rests as those before it; counts it."""
        with_others = self.drafts_are_free and num_rows > LOOKED_FOR
        return self._rest.goes_on(num_rows, is_crowded=is_crowded, with_others=with_others)

    def _stays(self, num_rows: int, *, is_crowded: bool) -> bool:
        """Whether the next round drafts as the last one did, unless that loses; counts it."""
        if self._rooms or self._account(num_rows).rests:
            self._stay.end()
        if not self._stay.goes_on(num_rows, is_crowded=is_crowded):
            return False
        self.trials.go_on()
        self._expected = self._stay.expected
        return True

    def _spares(self, num_rows: int) -> bool:
        """Whether it is spared to look for drafts: that costs more than they have brought."""
        if not (self.drafts_are_free and self.times.runs_ahead):
            return False
        looking, account = self._looking_with(num_rows), self._account(num_rows)
        if looking.should_rest:
            self._rest.begin(ROUNDS_TO_COMPARE)
        elif looking.price > 0 and account.rests:
            most = longest(self.times.plain_seconds(num_rows))
            self._rest.begin(min(account.rounds_left, most))
        else:
            return False
        return True

    def _looking_with(self, num_rows: int) -> Looking:
        size = alike(num_rows)
        if (found := self._looking.get(size)) is None:
            found = self._looking[size] = Looking()
        return found

    def _note_hopes(self, num_rows: int, *, is_hopeless: bool) -> None:
        least = 0
        if not self.drafts_are_free:  # else what they would have brought is seen without them
            least = self._account(num_rows).rounds_left
        plain = self.times.plain_seconds(num_rows)
        self._rest.note(is_hopeless=is_hopeless, plain=plain, at_least=least)

    def _account(self, num_rows: int) -> Account:
        size = alike(num_rows)
        if (found := self._accounts.get(size)) is None:
            plain = self.times.plain_seconds(num_rows)
            if plain is None:
                return Account()  # plain rounds come first
            found = self._accounts[size] = Account(start(plain, num_rows))
        return found

    def _settle(self, num_rows: int, depth: int, accepted: int, seconds: float) -> None:
        """Count what a round brought and took; others than its rows' coming and going may not."""
        account, expected = self._account(num_rows), self._expected
        self._expected = None
        price = 0.0
        if self.drafts_are_free and not self._rests:
            price = self._looking_with(num_rows).price
        if not (depth or self._last_depth) or self._rows_before not in (0, num_rows):
            if price:
                account.settle(0, 1.0, 1.0 + price)
            else:
                account.wait()
            return
        brought = 1 + accepted / num_rows
        if expected is not None and expected[1] > 0:
            brought = 1 + (expected[0] / num_rows - 1) * accepted / expected[1]
        account.settle(depth, brought, self.times.in_plain_rounds(num_rows, depth, seconds) + price)

    def _decide(self, num_rows: int, worth: Worth) -> int:
        """Return the depth of a round that is to bring ``worth``, or a trial's."""
        may_draft = not self._account(num_rows).rests or self.trials.is_under_way(num_rows)
        is_known = self.times.plain_seconds(num_rows) is not None
        depth = self._choose(num_rows, worth.tokens) if may_draft and is_known else 0
        self._expected = (worth.tokens[depth], worth.accepted[depth]) if depth else None
        return depth

    def _choose(self, num_rows: int, tokens: Seq[float]) -> int:
        """Return the best depth, or a trial's, of a round that is to bring ``tokens`` by depth."""
        guesses = [self.times.guess(num_rows, depth) for depth in range(len(tokens))]
        rates = [brings / guess.ratio for brings, guess in zip(tokens, guesses, strict=True)]
        best, margin = 0, MARGIN + MARGIN_PER_ROW * num_rows
        if num_rows > MANY_ROWS and not self._rest.is_crowded:
            margin += MARGIN_AT_END / max(1, self._most_left)
        size = alike(num_rows)
        if self.times.runs_ahead and size in self._drafting:
            margin = MARGIN_TO_END
        for depth, guess in enumerate(guesses):
            enough = rates[best] if best else margin * rates[0]
            if depth and guess.trusted and rates[depth] > enough:
                best = depth
        if best:
            self._drafting.add(size)
        else:
            self._drafting.discard(size)
        return self.trials.choose(num_rows, tokens, guesses, best)

    def _keep_time(self, num_rows: int, depth: int, seconds: float) -> None:
        """Keep what a round took that has as many rows as the last: others are dearer."""
        goes_on = self._rows_before in (0, num_rows)
        self._rows_before = num_rows
        if not goes_on:
            return
        goes_ahead = self._launched and self._launches
        # where nobody asks for that, what was said being needed first, all plain rounds are alike
        never_ahead = not (self._launched or self._may_launch)
        if not (depth or goes_ahead or never_ahead or self.drafts_are_free):
            return  # it was launched by none, or launches none: no plain rounds go on like that
        if bool(depth) == bool(self._last_depth) or (self.drafts_are_free and depth):
            self.times.add(num_rows, depth, seconds)
        elif self.drafts_are_free:
            self.times.add_after_drafts(num_rows, seconds)

    def _worth(self, num_rows: int, chances: Mapping[int, Seq[float]]) -> Worth:
        """What a round brings by depth; ``chances`` are those of the rows that have drafts."""
        ends_by = None if self._rest.is_crowded else self._long_to_go
        return worth(num_rows, chances, ends_by, self._most_left)

    def _learn(self, outcome: Outcome) -> None:
        if not self.drafts_are_free:
            kinds = range(min(outcome.num_drafted, self.max_depth))
            self.record.learn(outcome.seq_id, kinds, outcome.num_accepted)
        elif (found := self._found.get(outcome.seq_id)) is not None:
            self.record.learn_found(found, outcome.tokens)
