"""What drafting may lose against plain decoding, whatever drafts cost and bring."""

import random
from dataclasses import dataclass
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_rounds import found_by, row, run

from scheduler import account
from scheduler.account import SHARE, START, Account
from scheduler.adaptive_depth import AdaptiveDepth, Outcome
from scheduler.round_times import ENOUGH, Guess, RoundTimes
from scheduler.trials import FIRST_RETRY, MOST_CHARGED, Trials, _Stake

DEPTH = 4


@dataclass
class Machine:
    """What drafts bring and cost, in plain rounds; it never says so to anybody."""

    accepts: list[float]  # by place
    costs: list[float]  # by depth, beyond a plain round
    begins: float  # beyond that, of the first of several rounds with drafts
    ends: float  # likewise, of the plain round after them

    def gain(self, depth: int) -> float:
        """Tokens a row and plain round's time."""
        accepted = sum(prod(self.accepts[: place + 1]) for place in range(depth))
        return (1 + accepted) / (1 + self.costs[depth])


@dataclass
class Loss:
    """What a run took beyond plain decoding of as many tokens, in plain rounds."""

    at_last: float
    at_most: float  # beyond SHARE of the time, at any moment
    drafted: int


def lose(policy: AdaptiveDepth, machine: Machine, num_rows: int, rounds: int, seed: int) -> Loss:
    chance, rows = random.Random(seed), [row(number) for number in range(num_rows)]
    lost, total, worst, drafted, before = 0.0, 0.0, 0.0, 0, 0
    for _ in range(rounds):
        depths = policy.depths(rows, 1)
        depth = max(depths)
        seconds = 1 + machine.costs[depth]
        if bool(depth) != bool(before):
            seconds += machine.begins if depth else machine.ends
        outcomes = []
        for one in rows:
            accepted = 0
            while accepted < depth and chance.random() < machine.accepts[accepted]:
                accepted += 1
            outcomes.append(Outcome(one.seq_id, depth, accepted))
        policy.observe(num_rows, seconds, outcomes)
        said = num_rows + sum(outcome.num_accepted for outcome in outcomes)
        total += seconds
        lost += seconds - said / num_rows
        worst = max(worst, lost - SHARE * total)
        drafted += depth > 0
        before = depth
    return Loss(lost, worst, drafted)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    share, price = st.floats(0, 1), st.floats(0, 1)
    likely = draw(share)
    accepts = [min(1.0, likely * draw(st.floats(0.8, 1.1))) for _ in range(DEPTH)]
    first, each = draw(st.floats(0, 1.5)), draw(price)
    costs = [0.0] + [first + each * depth for depth in range(DEPTH)]
    return Machine(accepts, costs, draw(price), draw(st.floats(0, 0.6)))


@settings(max_examples=60, deadline=None)
@given(machines(), st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 99))
def test_whatever_drafts_bring_and_cost_no_run_loses_more_than_its_share(
    machine: Machine, num_rows: int, seed: int
) -> None:
    loss = lose(AdaptiveDepth(DEPTH), machine, num_rows, 1500, seed)
    # the round that spends the rest, and the one after it, are not foreseen
    last = 2 * (machine.costs[DEPTH] + machine.begins + machine.ends)
    assert loss.at_most <= account.START + last + account.RESUME + last
    best = max(machine.gain(depth) for depth in range(1, DEPTH + 1))
    if best < 0.8:
        assert loss.drafted < 75
    if machine.gain(1) > 1.3 and machine.begins + machine.ends < 0.5:
        assert loss.at_last < -0.1 * 1500


def test_drafts_that_are_dearer_than_they_seem_rest_and_are_tried_again_now_and_then() -> None:
    """What beginning and ending cost is in no round that is timed."""
    machine = Machine([0.5] * DEPTH, [0.0, 0.3, 0.7, 1.1, 1.5], begins=0.8, ends=0.8)
    loss = lose(AdaptiveDepth(DEPTH), machine, 4, 6000, 1)
    assert loss.at_most < account.START + 2
    assert loss.drafted > 8


def plain_rounds_of_rest(one: Account) -> int:
    """Spend what there is; return for how many plain rounds drafts then rest."""
    while not one.rests:
        one.settle(1, brought=1.0, took=2.2)
    plain = 0
    while one.rests:
        one.wait()
        plain += 1
    return plain


def test_an_account_rests_when_it_is_spent_for_a_pause_and_then_until_it_has_grown() -> None:
    one = Account()
    first, *later = [plain_rounds_of_rest(one) for _ in range(3)]
    assert first == account.PAUSE
    spent = 1.2 - account.SHARE * 2.2 - account.RESUME  # by a single round
    assert later == pytest.approx([(account.RESUME + spent) / account.SHARE] * 2, abs=2)


def test_an_account_in_which_drafts_have_brought_something_is_pardoned_anew() -> None:
    one = Account()
    assert plain_rounds_of_rest(one) == account.PAUSE
    assert plain_rounds_of_rest(one) > account.PAUSE
    for _ in range(5):
        one.settle(1, brought=2.0, took=1.0)
    assert plain_rounds_of_rest(one) == account.PAUSE


def test_a_round_that_something_else_held_up_is_not_charged_to_drafts_in_full() -> None:
    one = Account()
    one.settle(1, brought=2.0, took=50.0)
    assert not one.rests
    one.settle(2, brought=2.0, took=50.0)
    assert one.rests


def test_a_round_that_always_takes_long_is_charged_in_full_from_the_second_on() -> None:
    """As the first of several with drafts, if the drafter has to catch up."""
    one = Account(20.0)
    for _ in range(2):
        one.settle(1, brought=2.0, took=14.0)
        for _ in range(3):
            one.settle(1, brought=2.0, took=1.9)
    assert not one.rests
    one.settle(1, brought=2.0, took=14.0)
    assert one.rests


def test_what_drafts_have_brought_may_be_lost_again_but_for_what_is_long_ago() -> None:
    one = Account()
    for _ in range(1000):
        one.settle(1, brought=2.0, took=1.0)
    lost = 0.0
    while not one.rests:
        one.settle(1, brought=1.0, took=1.5)
        lost += 0.5
    assert lost == pytest.approx(account.MOST_SAVED, rel=0.05)


def test_a_trial_ends_as_it_was_meant_to_though_its_first_round_spent_the_rest() -> None:
    """The first round tells nothing: it does work that plain rounds have left."""
    machine = Machine([0.7] * DEPTH, [0.0, 1.6, 3.0, 4.0, 5.0], begins=2.0, ends=0.0)
    policy = AdaptiveDepth(1)
    lose(policy, machine, 2, 3000, 1)
    assert policy.times.guess(2, 1).measured


def test_where_no_plain_rounds_are_known_drafts_are_charged_what_they_take_elsewhere() -> None:
    """Rounds of one row take no less than those of two, but nobody has seen any without drafts."""
    policy = AdaptiveDepth(2)
    setting = {"acceptance": lambda row, place: 0.7, "seconds": lambda depth: 1.0 + 0.2 * depth}
    run(policy, num_rows=2, rounds=100, **setting)
    assert run(policy, num_rows=1, rounds=25, **setting).count(0) <= 5


def test_drafts_that_lose_with_many_rows_do_not_rest_with_few() -> None:
    policy = AdaptiveDepth(DEPTH)
    dear = Machine([0.4] * DEPTH, [0.0, 1.0, 2.0, 3.0, 4.0], begins=1.0, ends=1.0)
    cheap = Machine([0.9] * DEPTH, [0.0, 0.1, 0.2, 0.3, 0.4], begins=0.0, ends=0.0)
    assert lose(policy, dear, 8, 300, 1).at_last > 1
    assert lose(policy, cheap, 1, 100, 1).at_last < -100


@pytest.mark.parametrize("num_rows", [1, 8, 32])
@pytest.mark.parametrize("rounds", [16, 64, 400, 4000])
@pytest.mark.parametrize("price", [0.3, 0.9])
def test_no_run_loses_more_by_trying_than_its_share(num_rows, rounds, price) -> None:
    policy = AdaptiveDepth(4)
    total, accepted = [0.0], 0.35

    def seconds(depth):
        total[0] += 1.0 + price * depth
        return 1.0 + price * depth

    depths = run(
        policy,
        num_rows=num_rows,
        acceptance=lambda row, position: accepted,
        seconds=seconds,
        rounds=rounds,
    )
    gained = sum(sum(accepted**place for place in range(depth + 1)) for depth in depths)
    most_lost = START + SHARE * total[0]
    # what acceptance was believed to be before anything was drafted is no part of the account
    assert total[0] - gained <= most_lost + 2.5
    assert rounds < 64 or depths[-8:].count(0) >= 6


def test_a_trial_that_went_badly_is_the_last_until_as_much_was_earned() -> None:
    """Drafts cost twenty times what was assumed, so a trial is dearer than all that is saved up."""
    depths = run(
        AdaptiveDepth(1),
        num_rows=2,
        acceptance=lambda row, position: 0.7,
        seconds=lambda depth: 1.0 + 6.0 * depth,
        rounds=5000,
    )
    assert depths[:500].count(1) == 2
    assert depths.count(1) <= 6


@pytest.mark.parametrize(("credit", "is_tried"), [(4.0, False), (5.5, True)])
def test_a_depth_is_not_tried_again_before_there_is_credit_for_what_it_lost(
    credit: float, is_tried: bool
) -> None:
    trials = Trials(RoundTimes(), drafts_are_free=False)
    trials.times.runs_ahead = True
    for _ in range(ENOUGH):
        trials.times.add(1, 0, 1.0)
    guesses = [Guess(ratio, ratio, measured=True, trusted=True) for ratio in (1.0, 2.0)]
    trials._tried_with(1).lost[1] = 5.0
    trials.credit = credit
    chosen = []
    for _ in range(FIRST_RETRY + 1):
        chosen.append(trials.choose(1, [1.0, 1.9], guesses, 0))
        trials._tried_with(1).rounds += 1
    assert (1 in chosen) == is_tried


def test_a_round_that_is_far_dearer_is_charged_in_full_the_second_time() -> None:
    trials = Trials(RoundTimes(), drafts_are_free=False)
    trials.times.runs_ahead = True
    for _ in range(ENOUGH):
        trials.times.add(1, 0, 1.0)
    trials.end_round(1, 1.0)
    charged = []
    for _ in range(2):
        trials.credit = 0.0
        trials._stake = _Stake(1, 1.0, 1.0, is_trial=True)
        trials.end_round(1, 20.0)
        charged.append(SHARE * 20 - trials.credit)
    assert charged == pytest.approx([MOST_CHARGED, 19.0])
    assert trials._tried_with(1).lost[1] == pytest.approx(MOST_CHARGED + 19.0)


def test_found_drafts_that_do_not_pay_cost_no_run_more_than_its_share() -> None:
    for rounds in (16, 64, 400, 4000):
        policy = AdaptiveDepth(3, drafts_are_free=True)
        total = [0.0]

        def seconds(depth, total=total):
            total[0] += 1.0 + 0.5 * depth
            return 1.0 + 0.5 * depth

        _, said = found_by(
            policy, num_rows=8, num_drafting=3, right=0.8, rounds=rounds, seconds=seconds
        )
        assert total[0] - said / 8 <= START + SHARE * total[0] + 1  # for bad luck


def test_what_compiling_takes_ends_no_trial_where_rounds_are_short() -> None:
    seen: set[int] = set()

    def seconds(depth):
        first = depth not in seen
        seen.add(depth)
        return (30.0 if first and depth else 1.0 + 1.1 * bool(depth) + 0.1 * depth) * 0.001

    depths = run(
        AdaptiveDepth(4),
        num_rows=1,
        acceptance=lambda row, position: 0.9,
        seconds=seconds,
        rounds=400,
    )
    assert seen == {0, 1, 2, 3, 4}
    assert depths[-100:].count(4) > 80


def test_what_there_is_more_to_begin_with_is_withdrawn_once_it_was_time_to_learn() -> None:
    def may_lose(plain_rounds: int) -> float:
        one = Account(50.0)
        one.wait(plain_rounds)
        lost = 0.0
        while not one.rests:
            one.settle(1, brought=1.0, took=2.0)
            lost += 1
        return lost

    assert may_lose(0) > 49
    assert may_lose(account.LEARNING // 2) > 49
    assert may_lose(2 * account.LEARNING) < START + 4


def test_few_rows_and_short_rounds_may_lose_more_plain_rounds_at_first() -> None:
    assert account.start(0.01, 8) == account.start(1.0, 1) == account.START
    assert account.start(0.005, 1) == pytest.approx(10)
    assert account.start(0.01, 1) == pytest.approx(5)
    assert account.start(0.0025, 8) == pytest.approx(20)
