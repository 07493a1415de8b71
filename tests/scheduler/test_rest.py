"""Rounds in which drafts are not thought of cost next to nothing, and end when they have to."""

import sys
from collections import Counter

import pytest
from policy_rounds import row, run, run_ahead

from scheduler import rest
from scheduler.adaptive_depth import LEAST_CHANCE, AdaptiveDepth
from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.rest import Rest, longest
from scheduler.round import Round, Row, Verdict
from scheduler.scheduler import Scheduler
from scheduler.sequence import Group, Sequence

POOR = {"acceptance": 0.2, "seconds": lambda depth: 0.001 + 0.001 * depth}


def plain_round(num_rows, seconds=0.001):
    """A round without drafts, its verdicts, and what it takes."""
    rows = tuple(Row(n, (1,), 9, (1,)) for n in range(num_rows))
    return Round(rows), [Verdict(n, (1,)) for n in range(num_rows)], seconds


@pytest.mark.parametrize("drafts_are_free", [False, True])
@pytest.mark.parametrize("num_rows", [1, 32])
def test_a_round_that_rests_takes_few_calls_however_many_its_rows(
    num_rows, drafts_are_free
) -> None:
    policy = AdaptiveDepth(4, drafts_are_free=drafts_are_free)
    rows = [row(n) for n in range(num_rows)]
    executed = plain_round(num_rows)
    policy.rests(rows)
    policy.observe_round(*executed)
    policy._rest.num_rows, policy._rest.is_crowded = num_rows, False
    policy._rest.left = 60
    for _ in range(3):
        assert policy.rests(rows)
        policy.observe_round(*executed)
    calls = Counter()

    def count(frame, event, _):
        calls[event] += 1

    sys.setprofile(count)
    try:
        for _ in range(40):
            policy.rests(rows)
            policy.observe_round(*executed)
    finally:
        sys.setprofile(None)
    assert calls["call"] + calls["c_call"] <= 40 * 5 + 1


def test_rounds_that_rest_are_counted_as_if_each_had_been_looked_at() -> None:
    policy = AdaptiveDepth(4)
    run_ahead(policy, num_rows=4, rounds=1000, **POOR)
    policy._count_idle()
    assert policy.trials._tried_with(4).rounds == 1000
    assert policy.times.cell(4).rounds > 950  # but where drafts begin or end


def test_a_rest_grows_up_to_a_tenth_of_a_second() -> None:
    one, lengths = Rest(), []
    for _ in range(9):
        one.note(is_hopeless=True, plain=0.001)
        lengths.append(one.left)
    assert lengths == [1, 3, 7, 15, 31, 63, 100, 100, 100]
    one.note(is_hopeless=False, plain=0.001)
    assert one.left == 0
    assert (longest(None), longest(0.01), longest(0.0001)) == (rest.LONGEST, 24, rest.MOST)
    one.note(is_hopeless=True, plain=0.001, at_least=40)
    assert one.left == 40


def test_rows_that_come_or_go_and_a_line_of_others_end_a_rest() -> None:
    one = Rest()
    one.goes_on(4, is_crowded=False, with_others=False)
    one.note(is_hopeless=True, plain=0.001, at_least=40)
    assert one.goes_on(4, is_crowded=False, with_others=False)
    assert not one.goes_on(3, is_crowded=False, with_others=False)
    assert one.goes_on(3, is_crowded=False, with_others=False)
    assert not one.goes_on(3, is_crowded=True, with_others=False)
    assert one.goes_on(2, is_crowded=True, with_others=True)


def test_while_drafts_rest_for_what_they_lost_nobody_thinks_of_them() -> None:
    policy, rows = AdaptiveDepth(2), [row(n) for n in range(2)]
    poor = {"acceptance": lambda row, place: 0.1, "seconds": lambda depth: 0.001 * (1 + depth)}
    run(policy, num_rows=2, rounds=20, **poor)
    account = policy._account(2)
    while not account.rests:
        account.settle(1, brought=1.0, took=30.0)
    policy._rest.left = 0
    assert not any(policy.depths(rows))
    assert policy._rest.left == min(account.rounds_left, longest(0.001)) > 31


def test_who_is_alone_is_looked_for_at_once_though_nobody_looked_for_who_was_there_before() -> None:
    policy = AdaptiveDepth(3, drafts_are_free=True)
    assert any(policy.depths([row(1), row(2)]))
    policy._rest.note(is_hopeless=True, plain=None, at_least=20)
    assert not any(policy.depths([row(1), row(2)]))
    last = Sequence(2, Request("2", (1,), 1), 0, [1], 1, Group())
    assert policy.depths([last]) == [0]  # it has no room, and so nothing is judged
    assert policy.depths([row(3)]) == [3]


@pytest.mark.parametrize("num_rows", [4, 16])
def test_drafts_of_which_none_was_right_cost_little_and_are_found_out_once_they_are(
    num_rows,
) -> None:
    policy = AdaptiveDepth(3)

    def seconds(depth):
        return 0.01 * (1 + 0.1 * depth)

    rounds = {"num_rows": num_rows, "seconds": seconds, "rounds": 3000}
    none = run(policy, acceptance=lambda row, place: 0.0, **rounds)
    assert policy.record.overall[0] < LEAST_CHANCE
    assert sum(map(seconds, none[500:])) < 1.01 * 2500 * seconds(0)
    good = run(policy, acceptance=lambda row, place: 0.9, **rounds)
    assert good[-300:].count(0) < 30


class Telling(AdaptiveDepth):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(2)
        self.told: list[str] = []

    def holds_back(self) -> None:
        super().holds_back()
        self.told.append("holds back")

    def forget_round(self) -> None:
        super().forget_round()
        self.told.append("failed")


def decoding(num_blocks: int) -> tuple[Scheduler, Telling]:
    """A scheduler whose two sequences decode from now on."""
    policy = Telling()
    settings = {"num_blocks": num_blocks, "block_size": 4, "max_rows": 2, "check": True}
    scheduler = Scheduler(SchedulerConfig(**settings), policy)
    for number in range(2):
        scheduler.submit(Request(str(number), (1, 2), 6))
    scheduler.plan()
    scheduler.commit([Verdict(seq_id, (5,)) for seq_id in (1, 2)])
    return scheduler, policy


def commit(scheduler: Scheduler, policy: AdaptiveDepth, round_: Round) -> None:
    verdicts = [Verdict(one.seq_id, (5,)) for one in round_.rows]
    policy.observe_round(round_, verdicts, 1.0)
    scheduler.commit(verdicts)


@pytest.mark.parametrize(("num_blocks", "num_launched"), [(9, 2), (4, 1)])
def test_a_round_whose_rows_find_no_block_is_not_timed_as_one_that_launches_another(
    num_blocks: int, num_launched: int
) -> None:
    scheduler, policy = decoding(num_blocks)
    commit(scheduler, policy, scheduler.plan())
    round_ = scheduler.plan()  # the last position of each block
    ahead = scheduler.plan_ahead()
    assert ahead is not None
    assert len(ahead.rows) == num_launched
    assert policy.told == ([] if num_launched == 2 else ["holds back"])
    assert policy._launches == (num_launched == 2)
    commit(scheduler, policy, round_)
    assert policy._launched == (num_launched == 2)


def test_a_round_that_failed_is_no_longer_in_the_mind_of_the_policy() -> None:
    scheduler, policy = decoding(9)
    for _ in range(2):
        round_ = scheduler.plan()
        scheduler.plan_ahead()
        assert policy._launches
        commit(scheduler, policy, round_)
    scheduler.plan()
    scheduler.plan_ahead()
    scheduler.fail()
    assert policy.told == ["failed"]
    known = policy._launches, policy._launched, policy._rests, policy._next_rests
    assert not any((*known, policy.trials.has_stake))
