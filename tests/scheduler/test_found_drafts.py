"""Drafts that cost nothing to make: which of them a round runs."""

from policy_rounds import found_by, row

from scheduler.adaptive_depth import AdaptiveDepth, Outcome
from scheduler.depth import Found
from scheduler.request import Request
from scheduler.sequence import Group, Sequence


def test_free_drafts_of_one_row_among_many_do_not_widen_the_window_for_all() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    cost = {"seconds": lambda depth: 1.0 + 0.5 * depth, "num_rows": 8}
    depths, _ = found_by(policy, num_drafting=1, rounds=300, **cost)
    assert sum(depth > 0 for depth in depths) <= 10
    depths, _ = found_by(policy, num_drafting=8, rounds=60, **cost)
    assert depths[-40:].count(3) > 30


def test_rows_by_which_a_batch_does_not_end_are_not_waited_for() -> None:
    """One row has long to go and drafts in hand; those that have none are nearly done."""
    policy = AdaptiveDepth(3, drafts_are_free=True)

    def depth_with(done):
        rows = [row(0)] + [
            Sequence(n, Request(str(n), (1,), 40), 0, [1] * (1 + done), 1, Group()) for n in (1, 2)
        ]
        rows[0].request = Request("0", (1,), 40)
        policy.depths(rows, 0)
        depth = policy.affordable(3, [Found(0, (1, 1, 1), 16)])
        policy.observe(3, 1 + 0.1 * depth, [Outcome(0, depth, depth, (1,) * (depth + 1))])
        return depth

    assert [depth_with(done=30) for _ in range(80)][-20:].count(3) > 15
    assert [depth_with(done=0) for _ in range(80)][-20:].count(0) > 15


def test_a_row_that_gets_ahead_brings_little_where_nobody_waits_for_its_place() -> None:
    """All rows wait for the slowest: the batch ends no sooner, and every round takes longer."""
    cost = {"num_rows": 4, "num_drafting": 2, "rounds": 300, "seconds": lambda d: 1.0 + 0.2 * d}
    alone, _ = found_by(AdaptiveDepth(3, drafts_are_free=True), num_waiting=0, **cost)
    assert sum(depth > 0 for depth in alone) < 20
    crowded, _ = found_by(AdaptiveDepth(3, drafts_are_free=True), num_waiting=1, **cost)
    assert crowded[-40:].count(3) > 30


def test_free_drafts_that_cost_no_time_are_run_however_few() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    depths, _ = found_by(policy, num_rows=2, num_drafting=1, rounds=150, seconds=lambda depth: 1.0)
    assert depths[-40:].count(3) > 30


def test_free_drafts_that_were_never_run_are_known_to_be_wrong() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    cost = {"seconds": lambda depth: 1.0 + 0.3 * depth, "num_rows": 4, "num_drafting": 4}
    policy.trials.credit = -1e9  # nothing may be tried
    depths, _ = found_by(policy, rounds=100, right=0.1, **cost)
    assert set(depths) == {0}
    policy.trials.credit = 0.5
    depths, _ = found_by(policy, rounds=100, right=0.1, **cost)
    assert sum(depth > 0 for depth in depths) <= 4
    assert max(policy.record.overall[-1:]) < 0.2


def test_where_found_drafts_are_hopeless_they_are_seldom_looked_for() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    rows = [row(n) for n in range(16)]

    def ask_rounds(rounds, num_drafting):
        asked = 0
        for _ in range(rounds):
            depth = 0
            if any(policy.depths(rows, num_waiting=1)):
                asked += 1
                found = [Found(n, (1, 1, 1), 16) for n in range(num_drafting)]
                depth = policy.affordable(16, found)
            policy.observe(16, 1 + 0.5 * depth, [Outcome(n, 0, 0, (1,)) for n in range(16)])
        return asked

    assert ask_rounds(100, num_drafting=1) <= 12
    assert ask_rounds(100, num_drafting=16) >= 85

    few = [row(0)]
    policy = AdaptiveDepth(3, drafts_are_free=True)
    for _ in range(50):  # a single row's words may begin to repeat at any moment
        assert policy.depths(few) == [3]
        policy.affordable(1, [])
        policy.observe(1, 1.0, [Outcome(0, 0, 0, (1,))])


def test_what_a_draft_is_worth_depends_on_the_words_before_it() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    cost = {"seconds": lambda depth: 1.0 + 0.3 * depth, "num_rows": 4, "num_drafting": 4}
    for _ in range(60):
        found_by(policy, rounds=5, right=0.95, evidence=16, **cost)
        found_by(policy, rounds=5, right=0.05, evidence=2, **cost)
    long, _ = found_by(policy, rounds=10, right=0.95, evidence=16, **cost)
    short, _ = found_by(policy, rounds=10, right=0.05, evidence=2, **cost)
    assert long.count(3) >= 8
    assert short.count(0) >= 8


def test_a_row_whose_found_drafts_are_wrong_is_not_believed_any_more() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    for seq_id, right in ((1, True), (2, False)) * 40:
        policy.affordable(1, [Found(seq_id, (5,), 4)])
        policy.observe(1, 1.0, [Outcome(seq_id, 0, 0, (5,) if right else (6,))])
    assert policy.record.chance(1, 2) > 0.7
    assert policy.record.chance(2, 2) < 0.3


def test_plain_rounds_after_found_drafts_charge_what_is_left_over_to_the_drafts() -> None:
    """A draft's round costs 0.1 more, and the plain round after it 0.5: together too much."""
    policy, last = AdaptiveDepth(1, drafts_are_free=True), [0]

    def seconds(depth):
        left_over = 0.5 if last[0] and not depth else 0.0
        last[0] = depth
        return 1.0 + 0.1 * depth + left_over

    depths = []
    for number in range(400):
        has_any = number % 2  # every other round
        depth = policy.affordable(2, [Found(0, (1,), 16)] if has_any else [])
        policy.observe(
            2,
            seconds(depth),
            [Outcome(0, depth, depth, (1,) * (depth + 1)), Outcome(1, 0, 0, (9,))],
        )
        depths.append(depth)
    assert sum(depths[-200:]) < 10


def test_where_found_drafts_nearly_pay_they_are_looked_for_now_and_then() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    rows = [row(n) for n in range(4)]

    def asked(rounds, num_drafting):
        count = 0
        for _ in range(rounds):
            found = []
            if any(policy.depths(rows, num_waiting=1)):
                count += 1
                found = [Found(n, (1, 1, 1), 16) for n in range(num_drafting)]
            depth = policy.affordable(4, found) if found else 0
            outcomes = [
                Outcome(n, depth if n < num_drafting else 0, 0, (1,) * (1 + depth))
                for n in range(4)
            ]
            policy.observe(4, 1 + 0.35 * depth, outcomes)
        return count

    asked(100, num_drafting=1)
    assert 10 < asked(100, num_drafting=1) < 30
