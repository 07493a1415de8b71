"""Looking for drafts where that keeps rounds from running ahead."""

import random

import pytest
from policy_rounds import row

from scheduler import looking
from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.depth import Found
from scheduler.looking import Looking
from scheduler.round import Round, Row, Verdict


def test_looking_has_a_price_once_rounds_of_both_kinds_were_timed() -> None:
    one = Looking()
    for _ in range(looking.ENOUGH):
        assert not one.should_rest
        one.add(1.4, looked=True)
    for _ in range(1 + looking.ENOUGH):
        assert one.should_rest
        assert one.price == 0
        one.add(1.0, looked=False)
    assert not one.should_rest
    assert one.price == pytest.approx(0.4)


def test_a_price_that_could_be_noise_is_none() -> None:
    one = Looking()
    for looked in (True, False):
        for _ in range(9):
            one.add(1.1 if looked else 1.0, looked=looked)
    assert one.price == 0


def test_the_first_round_that_rests_is_not_timed() -> None:
    one = Looking()
    for _ in range(9):
        one.add(1.4, looked=True)
        one.add(0.1, looked=False)
    assert one.should_rest


def test_times_of_another_moment_say_nothing_of_a_price() -> None:
    """The machine has become twice as fast, and looking costs nothing there."""
    one = Looking()
    for seconds, looked, rounds in ((2.0, True, 9), (1.0, False, looking.MOMENT), (1.0, True, 3)):
        for _ in range(rounds):
            one.add(seconds, looked=looked)
    assert one.price == 0


def decode(*, num_rows, price, matches, rounds, right=0.9, seconds=0.001, seed=0):
    """Rounds of rows that look drafts up, where looking takes ``price`` more and drafting 1.

    ``matches(number)`` is how likely a row finds some. Return the rate over plain rounds', and what
    became of each round: it rested, looked or drafted.
    """
    chance, policy = random.Random(seed), AdaptiveDepth(3, drafts_are_free=True)
    rows = [row(number) for number in range(num_rows)]
    spent, said, became, rests = 0.0, 0, [], False
    for number in range(rounds):
        depth, found, looks = 0, [], False
        if not rests:
            looks = any(policy.depths(rows))
        if looks:
            found = [
                Found(n, (1, 1, 1), 8) for n in range(num_rows) if chance.random() < matches(number)
            ]
            depth = policy.affordable(num_rows, found)
        became.append("drafted" if depth else "looked" if looks else "rested")
        rests = not depth and policy.rests(rows)
        verdicts = []
        for one in rows:
            drafted = depth if any(one.seq_id == other.seq_id for other in found) else 0
            accepted = 0
            while accepted < drafted and chance.random() < right:
                accepted += 1
            verdicts.append(Verdict(one.seq_id, (1,) * (accepted + 1), drafted, accepted))
            said += accepted + 1
        took = {"rested": 1.0, "looked": 1 + price, "drafted": 2.0}[became[-1]] * seconds
        round_ = Round(tuple(Row(n, (1,), 9, (1,)) for n in range(num_rows)))
        policy.observe_round(round_, verdicts, took * chance.uniform(0.97, 1.03))
        spent += took
    return said / num_rows / (spent / seconds), became


@pytest.mark.parametrize("num_rows", [1, 8])
def test_where_looking_is_dear_and_finds_nothing_it_is_given_up(num_rows) -> None:
    rounds = 1500 if num_rows == 1 else 6000  # many rows look seldom in any case
    _, became = decode(num_rows=num_rows, price=0.4, matches=lambda number: 0.0, rounds=rounds)
    assert became[-1000:].count("looked") < 30
    assert became[-1000:].count("looked") > 1  # now and then it is tried again


@pytest.mark.parametrize("num_rows", [1, 8])
def test_where_looking_is_dear_but_finds_much_it_goes_on(num_rows) -> None:
    rate, became = decode(num_rows=num_rows, price=0.4, matches=lambda number: 0.9, rounds=600)
    assert rate > 1.3
    assert became[-100:].count("drafted") > 80


def test_what_begins_to_repeat_is_found_again_where_looking_is_dear() -> None:
    _, became = decode(
        num_rows=1, price=0.4, matches=lambda number: 0.9 * (number > 1000), rounds=2500
    )
    assert became[900:1000].count("rested") > 80
    assert became[-500:].count("drafted") > 400


def test_where_looking_costs_nothing_one_row_always_looks() -> None:
    _, became = decode(num_rows=1, price=0.0, matches=lambda number: 0.0, rounds=800)
    assert became.count("rested") <= 2 + looking.ENOUGH  # the first and the last are not timed


def test_who_never_runs_ahead_never_rests_to_compare() -> None:
    policy, rows = AdaptiveDepth(3, drafts_are_free=True), [row(0)]
    for number in range(200):
        assert any(policy.depths(rows)), number
        policy.affordable(1, [])
        policy.observe_round(Round((Row(0, (1,), 9, (1,)),)), [Verdict(0, (1,))], 1.0 + number % 2)


def test_rounds_with_prompt_chunks_say_nothing_of_what_looking_costs() -> None:
    policy, rows = AdaptiveDepth(3, drafts_are_free=True), [row(0)]
    prompt = Round((Row(0, (1,) * 64, 0, (1, 2, 3, 4), samples=False),))
    decoding = Round((Row(0, (1,), 9, (1,)),))
    looked, rests = [], False
    for number in range(400):
        if number % 20 == 0:  # another answer begins
            for _ in range(looking.SAMPLES):
                policy.observe_round(prompt, [Verdict(0)], 0.05)
            rests = False
        looked.append(not rests and any(policy.depths(rows)))
        if looked[-1]:
            policy.affordable(1, [])
        rests = policy.rests(rows)
        policy.observe_round(decoding, [Verdict(0, (1,))], 0.01)
    assert looked[-200:] == [True] * 200


def test_behind_a_look_in_vain_the_rounds_that_rest_are_decided_at_once() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    rows, looks, follows, rests = [row(n) for n in range(16)], 0, 0, False
    for _ in range(200):
        drafts = 0 if rests else max(policy.depths(rows))
        if drafts:
            looks += 1
            assert policy.affordable(16, []) == 0
        rests = policy.rests(rows)
        follows += bool(drafts) and rests
        window = Round(tuple(Row(n, (1,), 9, (1,), num_drafts=drafts) for n in range(16)))
        verdicts = [Verdict(n, (1,)) for n in range(16)]
        policy.observe_round(window, verdicts, 1.3 if drafts else 1.0)
    assert 5 < looks < 30
    assert follows >= looks - 4  # plain rounds of which nobody knows the time come first
