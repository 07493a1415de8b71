"""The depth policy, driven with made-up acceptance and made-up times."""

import random

import pytest
from policy_rounds import row, run

from scheduler.adaptive_depth import AdaptiveDepth, Outcome
from scheduler.batch_end import until_last
from scheduler.request import Request
from scheduler.sequence import Group, Sequence


def test_it_drafts_deeply_where_windows_cost_nothing() -> None:
    depths = run(
        AdaptiveDepth(4),
        num_rows=1,
        acceptance=lambda row, position: 0.9,
        seconds=lambda depth: 1.0,
        rounds=200,
    )
    assert depths[-100:].count(4) > 90


def test_it_goes_to_zero_where_drafts_cost_more_than_they_bring() -> None:
    depths = run(
        AdaptiveDepth(4),
        num_rows=8,
        acceptance=lambda row, position: 0.6,
        seconds=lambda depth: 1.0 + depth,
        rounds=400,
    )
    assert depths[-200:].count(0) > 190
    assert sum(depth > 0 for depth in depths) < 24, "trials cost too much"


def test_the_folds_of_a_deeper_round_are_not_charged_to_the_next() -> None:
    policy, before = AdaptiveDepth(1), [0]

    def seconds(depth):
        left_over = 0.3 if before[0] else 0.0
        before[0] = depth
        return 1.0 + left_over + 0.2 * depth

    def go(acceptance, rounds):
        return run(
            policy,
            num_rows=8,
            acceptance=lambda row, position: acceptance,
            seconds=seconds,
            rounds=rounds,
        )

    assert go(0.95, 4000)[-100:].count(1) > 90
    assert go(0.4, 600)[-100:].count(0) > 90, "plain rounds look slow if a trial is one round"


def test_it_comes_back_when_the_batch_shrinks() -> None:
    policy = AdaptiveDepth(4)
    wide = run(
        policy,
        num_rows=16,
        acceptance=lambda row, position: 0.8,
        seconds=lambda depth: 1.0 + depth,
        rounds=200,
    )
    narrow = run(
        policy,
        num_rows=1,
        acceptance=lambda row, position: 0.8,
        seconds=lambda depth: 1.0 + 0.05 * depth,
        rounds=200,
    )
    assert wide[-50:].count(0) > 45
    assert sum(narrow[-100:]) / 100 > 2.5


def test_it_comes_back_when_windows_become_cheap() -> None:
    policy = AdaptiveDepth(2)
    run(
        policy,
        num_rows=2,
        acceptance=lambda row, position: 0.9,
        seconds=lambda depth: 1.0 + 2 * depth,
        rounds=100,
    )
    later = run(
        policy,
        num_rows=2,
        acceptance=lambda row, position: 0.9,
        seconds=lambda depth: 1.0 + 0.1 * depth,
        rounds=2000,
    )
    assert later[-100:].count(2) > 80


def test_a_burst_of_requests_does_not_switch_drafting_off_for_good() -> None:
    policy = AdaptiveDepth(3)

    def go(num_rows, rounds):
        return run(
            policy,
            num_rows=num_rows,
            acceptance=lambda row, position: 0.9,
            seconds=lambda depth: 1.0 + 0.02 * depth * num_rows**2,
            rounds=rounds,
        )

    assert sum(go(1, 100)[-20:]) > 40
    go(32, 100)
    assert sum(go(1, 40)[-20:]) > 40


def test_a_row_whose_drafts_fail_carries_fewer_than_one_whose_drafts_hold() -> None:
    policy = AdaptiveDepth(4)
    run(
        policy,
        num_rows=2,
        acceptance=lambda row, position: 0.97 if row == 0 else 0.1,
        seconds=lambda depth: 1.0,
        rounds=300,
    )
    good, bad = row(0), row(1)
    depths = [policy.depths([good, bad]) for _ in range(3)]  # a trial takes two rounds
    assert depths[-1][1] < depths[-1][0]


def test_acceptance_is_learnt_by_position() -> None:
    policy = AdaptiveDepth(3)
    run(
        policy,
        num_rows=4,
        acceptance=lambda row, position: (0.9, 0.5, 0.1)[position],
        seconds=lambda depth: 1.0,
        rounds=2000,
    )
    assert policy.record.overall == pytest.approx([0.9, 0.5, 0.1], abs=0.12)


def test_what_a_row_did_with_drafts_is_forgotten_little_by_little_in_plain_rounds() -> None:
    policy = AdaptiveDepth(1)

    def chances():
        return policy.record.chance(1, 0), policy.record.chance(2, 0)

    for _ in range(20):
        policy.observe(2, 1.0, [Outcome(1, 1, 1), Outcome(2, 1, 0)])
    policy.observe(2, 1.0, [Outcome(1, 0, 0), Outcome(2, 0, 0)])
    good, bad = chances()
    assert good > 2 * bad
    for _ in range(60):
        policy.observe(2, 1.0, [Outcome(1, 0, 0), Outcome(2, 0, 0)])
    good, bad = chances()
    assert good == pytest.approx(bad, rel=0.02)


def test_a_depth_below_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="max_depth must be at least 1, not 0"):
        AdaptiveDepth(0)


def test_a_batch_of_a_new_size_begins_with_what_similar_ones_found() -> None:
    policy = AdaptiveDepth(4)
    found = {"acceptance": lambda row, position: 0.6, "seconds": lambda depth: 1.0 + depth}
    run(policy, num_rows=8, rounds=100, **found)
    depths = run(policy, num_rows=6, rounds=30, **found)
    assert depths[:8] == [0] * 8
    assert sum(depth > 0 for depth in depths) <= 4


def test_what_was_taken_over_from_another_size_is_checked() -> None:
    policy = AdaptiveDepth(2)
    acceptance = {"acceptance": lambda row, position: 0.9}
    run(policy, num_rows=8, rounds=100, seconds=lambda depth: 1.0 + depth, **acceptance)
    depths = run(policy, num_rows=4, rounds=100, seconds=lambda depth: 1.0, **acceptance)
    assert depths[-40:].count(2) > 30


def test_a_large_batch_begins_plainly_and_a_small_one_drafts_soon() -> None:
    cost = {"acceptance": lambda row, position: 0.7, "rounds": 12}
    large = run(AdaptiveDepth(4), num_rows=32, seconds=lambda depth: 1.0 + depth, **cost)
    assert sum(depth > 0 for depth in large) <= 5
    small = run(AdaptiveDepth(4), num_rows=1, seconds=lambda depth: 1.0 + 0.1 * depth, **cost)
    assert small[3:].count(0) == 0


def test_a_depth_that_pays_only_beyond_the_first_draft_is_found() -> None:
    depths = run(
        AdaptiveDepth(4),
        num_rows=4,
        acceptance=lambda row, position: 0.85,
        seconds=lambda depth: 1.0 + 0.75 * (depth > 0) + 0.15 * depth,
        rounds=400,
    )
    assert depths[-100:].count(4) > 85


def test_nothing_is_drafted_that_an_answer_has_no_room_for() -> None:
    policy = AdaptiveDepth(4)
    run(
        policy,
        num_rows=1,
        acceptance=lambda row, position: 0.9,
        seconds=lambda depth: 1.0,
        rounds=100,
    )
    nearly_done = Sequence(0, Request("0", (1,), 3), 0, [1, 5], 1, Group())
    assert [policy.depths([nearly_done])[0] for _ in range(3)][-1] == 1


@pytest.mark.parametrize(("num_rows", "num_left"), [(1, 15), (8, 24), (32, 15), (32, 400)])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_pace_of_the_last_row_is_about_that_of_many_batches(num_rows, num_left, depth) -> None:
    chance = random.Random(1)
    chances = [0.8 ** (place + 1) for place in range(depth)]
    total = 0
    for _ in range(300):
        rounds = []
        for _ in range(num_rows):
            left, count = num_left, 0
            while left > 0:
                left -= 1
                count += 1
                for _ in range(depth):
                    if chance.random() > 0.8:
                        break
                    left -= 1
            rounds.append(count)
        total += max(rounds)
    assert until_last(chances, num_left, num_rows) == pytest.approx(num_left * 300 / total, rel=0.1)


def test_short_answers_of_many_rows_are_not_worth_what_long_ones_are() -> None:
    def depths(max_tokens, num_waiting):
        policy = AdaptiveDepth(1)
        rows = [Sequence(n, Request("", (1,), max_tokens), 0, [1], 1, Group()) for n in range(32)]
        chosen = []
        for number in range(150):
            depth = policy.depths(rows, num_waiting)[0]
            chosen.append(depth)
            outcomes = [Outcome(n, depth, depth * ((n + number) % 5 > 0)) for n in range(32)]
            policy.observe(32, 1 + 0.5 * depth, outcomes)
        return sum(chosen[-30:])

    assert depths(1000, 0) > 25
    assert depths(8, 0) < 5
    assert depths(8, 1) > 25


def test_rows_decide_together() -> None:
    """Three rows of four accept nothing: the fourth's drafts do not pay for their wider windows."""
    policy = AdaptiveDepth(2)
    cost = {"seconds": lambda depth: 1.0 + 0.4 * depth, "num_rows": 4}
    run(policy, acceptance=lambda row, position: 0.9 if row == 0 else 0.02, rounds=400, **cost)
    depths = run(
        policy, acceptance=lambda row, position: 0.9 if row == 0 else 0.02, rounds=100, **cost
    )
    assert depths.count(0) > 90


def test_what_drafts_gain_pays_for_trials_of_deeper_ones() -> None:
    """A depth that pays is known; four drafts pay best, and are tried before SHARE has grown."""

    def fourth_is_tried(*, gains):
        policy = AdaptiveDepth(4)
        cost = {"num_rows": 2, "acceptance": lambda row, position: 0.95 if gains else 0.3}
        run(policy, rounds=60, seconds=lambda depth: 1.0 + 0.2 * depth, **cost)
        policy.trials.credit = -1.0
        depths = run(policy, rounds=60, seconds=lambda depth: 1.0 + 0.2 * depth, **cost)
        return policy.trials.credit > 0, depths

    assert fourth_is_tried(gains=True)[0]
    assert not fourth_is_tried(gains=False)[0]


def test_what_is_left_of_a_batch_drafts_by_what_the_whole_batch_found() -> None:
    policy = AdaptiveDepth(2)
    found = {"acceptance": lambda row, position: 0.9, "seconds": lambda depth: 1.0 + 0.2 * depth}
    run(policy, num_rows=8, rounds=60, **found)
    policy.trials.credit = -10.0  # nothing may be tried
    for num_rows in (3, 1):
        assert run(policy, num_rows=num_rows, rounds=4, **found) == [2] * 4


def test_rounds_in_which_rows_have_come_or_gone_are_not_timed() -> None:
    policy = AdaptiveDepth(1)
    run(policy, num_rows=4, rounds=8, acceptance=lambda row, position: 0.0, seconds=lambda d: 1.0)
    for _ in range(3):
        policy.observe(3, 9.0, [])
        policy.observe(4, 9.0, [])
    assert policy.times.plain_seconds(3) == 0.75  # as that of four rows says


@pytest.mark.parametrize("period", [37, 61, 150, 211])
def test_a_machine_that_changes_its_speed_makes_no_drafts_seem_to_pay_or_not_to(period) -> None:
    """It takes 1.6 times as long for a while, again and again, whatever is being tried."""

    def depths(acceptance, costs, num_rows):
        rounds = [0]

        def seconds(depth):
            rounds[0] += 1
            return (1.6 if rounds[0] // period % 2 else 1.0) * costs[depth]

        policy = AdaptiveDepth(4)
        return run(
            policy,
            num_rows=num_rows,
            acceptance=lambda row, place: acceptance,
            seconds=seconds,
            rounds=2000,
        )

    gains = depths(0.85, [1.0, 1.5, 1.7, 1.9, 2.1], 1)
    assert gains.count(0) < 200
    loses = depths(0.6, [1.0, 1.8, 2.4, 3.0, 3.6], 8)
    assert loses.count(0) > 1950
