"""Rounds with made-up acceptance and made-up times, which drive a depth policy."""

import random

from scheduler.adaptive_depth import Outcome
from scheduler.depth import Found
from scheduler.request import Request
from scheduler.round import Round, Row, Verdict
from scheduler.sequence import Group, Sequence


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
