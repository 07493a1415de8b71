"""The depth policy, driven with made-up acceptance and made-up times."""

import random

import pytest

from scheduler.adaptive_depth import AdaptiveDepth, Outcome
from scheduler.request import Request
from scheduler.sequence import Group, Sequence


def row(seq_id):
    return Sequence(seq_id, Request(str(seq_id), (1,), 9), 0, [1], 1, Group())


def run(policy, *, num_rows, acceptance, seconds, rounds, seed=0):
    """Drive ``rounds`` rounds; ``seconds(depth)`` is a round's time. Return the depths chosen."""
    chance = random.Random(seed)
    rows = [row(n) for n in range(num_rows)]
    depths = []
    for _ in range(rounds):
        chosen = [policy.depth(one, num_rows) for one in rows]
        outcomes = []
        for one, depth in zip(rows, chosen, strict=True):
            accepted = 0
            while accepted < depth and chance.random() < acceptance(one.seq_id, accepted):
                accepted += 1
            outcomes.append(Outcome(one.seq_id, depth, accepted))
        deepest = max(chosen)
        policy.observe(num_rows, seconds(deepest), outcomes)
        depths.append(deepest)
    return depths


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
    assert policy.depth(bad, 2) < policy.depth(good, 2)


def test_acceptance_is_learnt_by_position() -> None:
    policy = AdaptiveDepth(3)
    run(
        policy,
        num_rows=4,
        acceptance=lambda row, position: (0.9, 0.5, 0.1)[position],
        seconds=lambda depth: 1.0,
        rounds=2000,
    )
    assert policy.acceptance == pytest.approx([0.9, 0.5, 0.1], abs=0.12)


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


def found_by(policy, *, num_rows, num_drafting, rounds, seconds):
    """Drive rounds in which ``num_drafting`` rows have three good drafts in hand; return depths."""
    depths = []
    for _ in range(rounds):
        lengths = [policy.depth(row(n), num_rows) for n in range(num_rows)][:num_drafting]
        depth = policy.affordable(num_rows, lengths)
        policy.observe(
            num_rows,
            seconds(depth),
            [Outcome(n, depth, depth) for n in range(num_drafting)]
            + [Outcome(n, 0, 0) for n in range(num_drafting, num_rows)],
        )
        depths.append(depth)
    return depths


def test_free_drafts_of_one_row_among_many_do_not_widen_the_window_for_all() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    cost = {"seconds": lambda depth: 1.0 + 0.5 * depth, "num_rows": 8, "rounds": 60}
    assert found_by(policy, num_drafting=1, **cost)[-40:].count(0) == 40
    assert found_by(policy, num_drafting=8, **cost)[-40:].count(3) > 30


def test_free_drafts_that_cost_no_time_are_run_however_few() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    depths = found_by(policy, num_rows=8, num_drafting=1, rounds=60, seconds=lambda depth: 1.0)
    assert depths[-40:].count(3) == 40
