"""Rounds that are decided ahead, or not thought of at all."""

from copy import deepcopy

from policy_rounds import row, run, run_ahead

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.round import Round, Row, Verdict


def test_depths_that_do_not_pay_are_seldom_thought_of_and_at_once_with_other_rows() -> None:
    policy, thought = AdaptiveDepth(4), [0]

    class Counting(type(policy.record)):
        def chances(self, seq_id, kinds):
            thought[0] += 1
            return super().chances(seq_id, kinds)

    policy.record = Counting(4)
    poor = {"acceptance": lambda row, position: 0.3, "seconds": lambda depth: 1.0 + depth}
    run(policy, num_rows=8, rounds=200, **poor)
    thought[0] = 0
    run(policy, num_rows=8, rounds=80, **poor)
    assert thought[0] < 20 * 8
    thought[0] = 0
    run(policy, num_rows=4, rounds=1, **poor)
    assert thought[0] == 4


def test_rounds_in_which_drafts_are_not_thought_of_are_counted_and_seldom_timed() -> None:
    policy = AdaptiveDepth(4)
    setting = {"num_rows": 4, "acceptance": 0.3, "seconds": lambda depth: 1.0 + depth}
    run_ahead(policy, rounds=100, **setting)
    policy._count_idle()
    cell, timed = policy.times.cell(4), [0]
    before, tried = cell.rounds, policy.trials._tried_with(4).rounds
    add = policy.times.add

    def counting(*arguments):
        timed[0] += 1
        add(*arguments)

    policy.times.add = counting
    run_ahead(policy, rounds=100, **setting)

    assert cell.rounds - before > 90  # but where rows come or go, or drafts were just tried
    policy._count_idle()
    assert policy.trials._tried_with(4).rounds == tried + 100
    assert timed[0] < 45


def test_rounds_that_rest_are_decided_early_and_those_that_draft_when_their_turn_comes() -> None:
    setting = {"num_rows": 4, "acceptance": 0.5, "seconds": lambda depth: 1.0 + depth}
    policy = AdaptiveDepth(4)
    depths, early = run_ahead(policy, rounds=2000, **setting)
    rounds = list(zip([1, *depths], depths, early, strict=False))

    assert 4 < sum(depth > 0 for depth in depths) < 60
    assert not any(depth and is_early for _, depth, is_early in rounds)
    # that one is to draft is foreseen, too: in vain now and then only
    assert sum(not (before or depth or is_early) for before, depth, is_early in rounds) < 3
    assert early.count(True) > 1800
    policy._count_idle()
    assert policy.trials._tried_with(4).rounds == 2000


def test_deciding_early_finds_what_pays_as_well() -> None:
    setting = {"num_rows": 2, "acceptance": 0.9, "seconds": lambda depth: 1.0 + 0.1 * depth}
    depths, _ = run_ahead(AdaptiveDepth(4), rounds=300, **setting)

    assert depths[-100:].count(4) > 90


def test_a_round_that_is_to_draft_is_not_decided_early_and_nothing_is_changed() -> None:
    policy, rows = AdaptiveDepth(2), [row(n) for n in range(3)]
    of_trials = ["credit", "_tried", "_stake", "_next_stake"]

    def state():
        policy._count_idle()
        return deepcopy(
            [policy._rest.keep()] + [getattr(policy.trials, name) for name in of_trials]
        )

    depths, num_refused = [0], 0
    for _ in range(200):
        before = state()
        rests = not depths[0] and policy.rests(rows)
        if not depths[0] and not rests:
            num_refused += 1
            assert state() == before
        said = (1,) * (depths[0] + 1)
        policy.observe_round(
            Round(tuple(Row(one.seq_id, (1,), 9, (1,), num_drafts=depths[0]) for one in rows)),
            [Verdict(one.seq_id, said, depths[0], depths[0]) for one in rows],
            1.0 + depths[0],
        )
        depths = [0] * 3 if rests else policy.depths(rows)

    assert 1 < num_refused < 30
