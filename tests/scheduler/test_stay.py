"""Rounds that draft on without being thought over."""

import pytest

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.request import Request
from scheduler.round import Round, Row, Verdict
from scheduler.sequence import Group, Sequence
from scheduler.stay import LENGTH, Stay


def sequences(count: int, max_tokens: int = 9000) -> list[Sequence]:
    return [
        Sequence(n, Request(str(n), (1,), max_tokens), 0, [1], 1, Group()) for n in range(count)
    ]


def decode(policy: AdaptiveDepth, rows: list[Sequence], rounds: int) -> list[int]:
    """Rounds whose drafts are all right and cost little; return their depths."""
    depths = []
    for _ in range(rounds):
        chosen = policy.depths(rows)
        depth = max(chosen)
        if not depth:
            policy.rests(rows)
        verdicts = [
            Verdict(one.seq_id, (1,) * (own + 1), own, own)
            for one, own in zip(rows, chosen, strict=True)
        ]
        places = tuple(Row(one.seq_id, (1,), 9, (1,), num_drafts=depth) for one in rows)
        policy.observe_round(Round(places), verdicts, 0.001 + 0.0001 * depth)
        depths.append(depth)
    return depths


@pytest.fixture
def policy(monkeypatch):
    """One that has learnt that drafts pay, and counts how often it thinks of them."""
    policy = AdaptiveDepth(4)
    decode(policy, sequences(4), 200)
    policy.thoughts = 0
    real = policy._worth

    def counted(*arguments):
        policy.thoughts += 1
        return real(*arguments)

    monkeypatch.setattr(policy, "_worth", counted)
    return policy


def test_drafts_that_go_on_are_thought_of_once_in_several_rounds(policy) -> None:
    depths = decode(policy, sequences(4), 80)
    assert depths.count(4) > 70
    assert policy.thoughts < 80 / (LENGTH + 1) * 1.5


def test_rows_that_come_are_thought_of_at_once(policy) -> None:
    decode(policy, sequences(4), 40)
    while policy._stay.left < 2:
        decode(policy, sequences(4), 1)
    before = policy.thoughts
    decode(policy, sequences(5), 1)
    assert policy.thoughts > before


def test_answers_near_their_end_are_thought_of_each_round(policy) -> None:
    decode(policy, sequences(4), 8)
    near = sequences(4, max_tokens=4)
    for _ in range(6):
        before = policy.thoughts
        decode(policy, near, 1)
        assert policy.thoughts > before


def test_it_ends_where_others_wait_or_a_round_failed(policy) -> None:
    stay = Stay()
    stay.begin(3, 4, is_crowded=False, expected=(5.0, 1.0))
    assert stay.goes_on(4, is_crowded=False)
    assert not stay.goes_on(4, is_crowded=True)
    assert not stay.goes_on(4, is_crowded=False)
    while not policy._stay.left:
        decode(policy, sequences(4), 1)
    policy.forget_round()
    assert not policy._stay.left
