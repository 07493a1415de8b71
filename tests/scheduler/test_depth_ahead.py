"""Depths where plain rounds run ahead of the host, and rounds with drafts do not."""

import random
from dataclasses import dataclass
from statistics import median

import pytest

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.depth import NoDrafts
from scheduler.request import Request
from scheduler.round import Round, Row, Verdict
from scheduler.sequence import Group, Sequence

ANSWER = 48  # tokens of each


@dataclass
class Device:
    """What rounds take; a plain one is launched while the one before it runs, if that is known."""

    plain: float
    first: float  # a round with one draft
    each: float  # every draft more
    begins: float  # the first round with drafts, beyond that
    accepts: float
    compiles: float = 0.0  # each depth, once

    def __post_init__(self) -> None:
        self.known: set[int] = set()

    def seconds(self, depth: int, before: int, *, launched: bool, launches: bool) -> float:
        """What the host takes for a round that was ``launched``, or not, and ``launches`` one."""
        if not depth:
            launch = 0.9 * self.plain
            waits = 0.1 if launched else 0.5
            return launch * launches + launch * (not launched) + waits * self.plain
        new = depth not in self.known
        self.known.add(depth)
        began = 0.0 if before else self.begins
        return self.first + self.each * (depth - 1) + began + self.compiles * new


def decode(policy: AdaptiveDepth, device: Device, num_rows: int, rounds: int, seed: int = 0):
    """Decode answers of ANSWER tokens one batch after the other; return (depth, seconds, tokens)
    of every round."""
    chance, trace = random.Random(seed), []
    number = 0
    while len(trace) < rounds:
        number += 1
        request = Request(str(number), (1,), ANSWER)
        rows = [Sequence(number * 100 + n, request, 0, [1], 1, Group()) for n in range(num_rows)]
        policy.observe_round(Round((Row(0, (1, 2), 0, (1,)),)), [Verdict(0, (1,))], device.plain)
        launched, before, left = False, 0, float(ANSWER)
        while left > 0:
            depths = [0] * num_rows if launched else list(policy.depths(rows, 0))
            depth = max(depths)
            launches = not depth and left > 1 and policy.rests(rows, 0)
            took = device.seconds(depth, before, launched=launched, launches=launches)
            verdicts = []
            for one, most in zip(rows, depths, strict=True):
                accepted = 0
                while accepted < most and chance.random() < device.accepts:
                    accepted += 1
                one.tokens.extend([1] * (accepted + 1))
                verdicts.append(Verdict(one.seq_id, (1,) * (accepted + 1), most, accepted))
            round_ = Round(
                tuple(
                    Row(one.seq_id, (1,), 9, (1,), num_drafts=most)
                    for one, most in zip(rows, depths, strict=True)
                )
            )
            policy.observe_round(round_, verdicts, took * chance.uniform(0.93, 1.07))
            said = sum(len(verdict.tokens) for verdict in verdicts)
            trace.append((depth, took, said))
            left -= said / num_rows
            launched, before = launches, depth
    return trace


def rate(trace) -> float:
    return sum(said for *_, said in trace) / sum(took for _, took, _ in trace)


@pytest.mark.parametrize("num_rows", [1, 2, 4])
@pytest.mark.parametrize("compiles", [0.0, 0.02])
def test_deep_drafts_are_found_to_pay_where_shallow_ones_do_not(num_rows, compiles) -> None:
    device = Device(0.0007, 0.0016, 0.00006, 0.0008, accepts=0.87, compiles=compiles)
    trace = decode(AdaptiveDepth(4), device, num_rows, 1200)
    later = trace[400:]
    assert sum(depth >= 3 for depth, *_ in later) > 0.5 * len(later)
    assert rate(later) > 1.2 * num_rows / device.plain


@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_where_no_depth_pays_rounds_run_ahead(num_rows) -> None:
    device = Device(0.001, 0.0028, 0.0009, 0.0008, accepts=0.6)
    trace = decode(AdaptiveDepth(4), device, num_rows, 2000)
    assert sum(depth > 0 for depth, *_ in trace[500:]) < 40
    assert rate(trace[500:]) > 0.95 * num_rows / device.plain  # ANSWER's first round is not ahead


class Plain(NoDrafts):
    """Plain decoding, which learns nothing."""

    def observe_round(self, *_) -> None:
        pass


@pytest.mark.parametrize("begins", [0.001, 0.008])
@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_drafts_that_never_pay_cost_about_a_hundredth_once_that_is_learnt(num_rows, begins) -> None:
    """Of the time after 240 rounds, of 1,000: what a benchmark of an engine measures."""
    costs = []
    for seed in range(8):
        device = Device(0.001, 0.0028, 0.0009, begins, accepts=0.5, compiles=0.02)
        trace = decode(AdaptiveDepth(4), device, num_rows, 1240, seed)[240:]
        usual = decode(Plain(), device, num_rows, 1240, seed)[240:]
        costs.append(rate(usual) / rate(trace) - 1)
    assert median(costs) < 0.0125
    assert max(costs) < 0.03


def test_a_plain_round_that_launches_none_is_no_measure_of_plain_rounds() -> None:
    device = Device(0.001, 0.0018, 0.0001, 0.0, accepts=0.9)
    policy = AdaptiveDepth(4)
    decode(policy, device, 1, 1000)
    assert policy.times.plain_seconds(1) == pytest.approx(device.plain, rel=0.1)


@pytest.mark.parametrize("num_rows", [1, 4])
def test_rows_whose_rounds_never_run_ahead_draft_though_others_did(num_rows) -> None:
    """What penalties or a grammar do needs each token first: the policy is not asked any more."""
    policy = AdaptiveDepth(3)
    rows = [Sequence(n, Request(str(n), (1,), 9000), 0, [1], 1, Group()) for n in range(num_rows)]

    def observe(depth: int, accepted: int) -> None:
        window = Round(tuple(Row(n, (1,), 9, (1,), num_drafts=depth) for n in range(num_rows)))
        said = (1,) * (accepted + 1)
        verdicts = [Verdict(n, said, depth, accepted) for n in range(num_rows)]
        policy.observe_round(window, verdicts, 0.01 + 0.001 * depth)

    assert not any(policy.depths(rows))
    policy.rests(rows)
    observe(0, 0)
    depths = []
    for _ in range(200):
        depths.append(max(policy.depths(rows)))
        observe(depths[-1], depths[-1])
    assert sum(depth == 3 for depth in depths) > 150
