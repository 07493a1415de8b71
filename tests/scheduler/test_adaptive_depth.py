"""The depth policy, driven with made-up acceptance and made-up times."""

import random
from copy import deepcopy

import pytest

from scheduler.adaptive_depth import AdaptiveDepth, Outcome, until_last
from scheduler.depth import Found
from scheduler.request import Request
from scheduler.round import Round, Row, Verdict
from scheduler.sequence import Group, Sequence
from scheduler.trials import SHARE, START


def row(seq_id):
    return Sequence(seq_id, Request(str(seq_id), (1,), 1000), 0, [1], 1, Group())


def run(policy, *, num_rows, acceptance, seconds, rounds, seed=0):
    """Drive ``rounds`` rounds; ``seconds(depth)`` is a round's time. Return the depths chosen."""
    chance = random.Random(seed)
    rows = [row(n) for n in range(num_rows)]
    depths = []
    for _ in range(rounds):
        chosen = policy.depths(rows)
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


def test_depths_that_do_not_pay_are_seldom_thought_of_and_at_once_with_other_rows() -> None:
    policy, thought = AdaptiveDepth(4), [0]

    class Counting(type(policy.record)):
        def chance(self, seq_id, kind):
            thought[0] += kind == 0
            return super().chance(seq_id, kind)

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
    cell, timed = policy.times.cell(4), [0]
    before, tried = cell.rounds, policy.trials._tried_with(4).rounds
    add = policy.times.add

    def counting(*arguments):
        timed[0] += 1
        add(*arguments)

    policy.times.add = counting
    run_ahead(policy, rounds=100, **setting)

    assert cell.rounds - before > 90  # but where rows come or go, or drafts were just tried
    assert policy.trials._tried_with(4).rounds == tried + 100
    assert timed[0] < 45


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


def found_by(
    policy,
    *,
    num_rows,
    num_drafting,
    rounds,
    seconds,
    right=1.0,
    evidence=16,
    seed=0,
    num_waiting=1,
):
    """Drive rounds in which so many rows have three drafts in hand; return depths and tokens."""
    chance = random.Random(seed)
    depths, said = [], 0
    for _ in range(rounds):
        rooms = policy.depths([row(n) for n in range(num_rows)], num_waiting)
        depth = 0
        if any(rooms):
            found = [Found(n, (1, 1, 1), evidence) for n in range(num_drafting)]
            depth = policy.affordable(num_rows, found)
        outcomes = []
        for number in range(num_rows):
            drafted = depth if number < num_drafting else 0
            accepted = 0
            while accepted < drafted and chance.random() < right:
                accepted += 1
            goes_on = accepted == drafted and chance.random() < right
            tokens = (1,) * accepted + ((1,) if goes_on else (2,))
            outcomes.append(Outcome(number, drafted, accepted, tokens))
            said += len(tokens)
        policy.observe(num_rows, seconds(depth), outcomes)
        depths.append(depth)
    return depths, said


def test_free_drafts_of_one_row_among_many_do_not_widen_the_window_for_all() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    cost = {"seconds": lambda depth: 1.0 + 0.5 * depth, "num_rows": 8}
    depths, _ = found_by(policy, num_drafting=1, rounds=300, **cost)
    assert sum(depth > 0 for depth in depths) <= 10
    depths, _ = found_by(policy, num_drafting=8, rounds=60, **cost)
    assert depths[-40:].count(3) > 30


def test_a_row_that_gets_ahead_brings_little_where_nobody_waits_for_its_place() -> None:
    """All rows wait for the slowest: the batch ends no sooner, and every round takes longer."""
    cost = {"num_rows": 4, "num_drafting": 2, "rounds": 300, "seconds": lambda d: 1.0 + 0.2 * d}
    alone, _ = found_by(AdaptiveDepth(3, drafts_are_free=True), num_waiting=0, **cost)
    assert sum(depth > 0 for depth in alone) < 20
    crowded, _ = found_by(AdaptiveDepth(3, drafts_are_free=True), num_waiting=1, **cost)
    assert crowded[-40:].count(3) > 30


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

    assert ask_rounds(100, num_drafting=1) <= 25
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


def run_ahead(policy, *, num_rows, acceptance, seconds, rounds):
    """As ``run``, but each round is decided while the one before it is in flight, if it rests.

    Returns depths, and which rounds were decided so.
    """
    chance = random.Random(0)
    rows = [row(n) for n in range(num_rows)]
    depths, early = [], []
    rests = False
    for _ in range(rounds):
        chosen = [0] * num_rows if rests else policy.depths(rows)
        depths.append(max(chosen))
        early.append(rests)
        rests = not depths[-1] and policy.rests(rows)
        verdicts = []
        for one, depth in zip(rows, chosen, strict=True):
            accepted = 0
            while accepted < depth and chance.random() < acceptance:
                accepted += 1
            said = (1,) * (accepted + 1)
            verdicts.append(Verdict(one.seq_id, said, depth, accepted))
        window = Round(tuple(Row(n, (1,), 9, (1,), num_drafts=depths[-1]) for n in range(num_rows)))
        policy.observe_round(window, verdicts, seconds(depths[-1]))
    return depths, early


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
    assert policy.trials._tried_with(4).rounds == 2000


def test_deciding_early_finds_what_pays_as_well() -> None:
    setting = {"num_rows": 2, "acceptance": 0.9, "seconds": lambda depth: 1.0 + 0.1 * depth}
    depths, _ = run_ahead(AdaptiveDepth(4), rounds=300, **setting)

    assert depths[-100:].count(4) > 90


def test_a_round_that_is_to_draft_is_not_decided_early_and_nothing_is_changed() -> None:
    policy, rows = AdaptiveDepth(2), [row(n) for n in range(3)]
    names = ["_skipped", "_hopeless", "_last_rows"]
    of_trials = ["credit", "_tried", "_stake", "_next_stake"]

    def state():
        return deepcopy(
            [getattr(policy, name) for name in names]
            + [getattr(policy.trials, name) for name in of_trials]
        )

    depths, num_refused = [0], 0
    for _ in range(200):
        before = state()
        rests = not depths[0] and policy.rests(rows)
        if not depths[0] and not rests:
            num_refused += 1
            assert state() == before
        policy.observe(
            3, 1.0 + depths[0], [Outcome(one.seq_id, depths[0], depths[0]) for one in rows]
        )
        depths = [0] * 3 if rests else policy.depths(rows)

    assert 1 < num_refused < 30


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
