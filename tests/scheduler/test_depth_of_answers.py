"""Depths where batches of answers end raggedly, and drafts begin and end at a price."""

import random
from dataclasses import dataclass
from statistics import fmean

import pytest

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.depth import NoDrafts
from scheduler.request import Request
from scheduler.round import Round, Row, Verdict
from scheduler.sequence import Group, Sequence

ANSWER, BATCHES, LEARNT = 48, 20, 5  # tokens; batches, of which the first are not counted


@dataclass
class Device:
    """Seconds of rounds; a plain one that goes on is launched while the one before it runs."""

    plain: float
    drafted: tuple[float, ...]  # by depth
    begins: float  # the first round with drafts, beyond that
    accepts: float

    def seconds(self, depth: int, before: int, *, launched: bool, launches: bool) -> float:
        """What the host takes for a round."""
        if depth:
            return self.drafted[depth - 1] + (0.0 if before else self.begins)
        return self.plain * (1.0 if launched and launches else 0.3 if launched else 1.9)


class Plain(NoDrafts):
    """Plain decoding, which learns nothing."""

    def observe_round(self, *_) -> None:
        pass


def decode(policy, device: Device, num_rows: int, seed: int) -> tuple[float, int]:
    """Decode BATCHES batches of ANSWER tokens a row; return tokens a second and how often drafts
    began."""
    chance, time, said, begun = random.Random(seed), 0.0, 0, 0
    for batch in range(BATCHES):
        request = Request(str(batch), (1,), ANSWER)
        rows = [Sequence(batch * 99 + n, request, 0, [1], 1, Group()) for n in range(num_rows)]
        policy.observe_round(Round((Row(0, (1, 2), 0, (1,)),)), [Verdict(0, (1,))], device.plain)
        launched, before = False, 0
        while rows:
            depth = 0 if launched else max(policy.depths(rows, 0))
            going = [one for one in rows if ANSWER - one.num_generated > 1]
            launches = not depth and bool(going) and policy.rests(going, 0)
            took = device.seconds(depth, before, launched=launched, launches=launches)
            took = took * chance.uniform(0.95, 1.05) + 0.003 * (chance.random() < 0.01)
            verdicts = []
            for one in rows:  # each carries as many, though its answer may end before
                accepted = 0
                while accepted < depth and chance.random() < device.accepts:
                    accepted += 1
                gained = min(accepted + 1, ANSWER - one.num_generated)
                one.tokens.extend([1] * gained)
                verdicts.append(Verdict(one.seq_id, (1,) * gained, depth, accepted))
                said += gained * (batch >= LEARNT)
            places = tuple(Row(one.seq_id, (1,), 9, (1,), num_drafts=depth) for one in rows)
            policy.observe_round(Round(places), verdicts, took)
            if batch >= LEARNT:
                time += took
                begun += bool(depth) and not before
            rows = [one for one in rows if one.num_generated < ANSWER]
            launched, before = launches, depth
    return said / time, begun


@pytest.mark.parametrize(
    ("num_rows", "device", "gains", "begins"),
    [  # about what an H200's host takes, with a model so small that the device waits for it
        (1, Device(0.00072, (0.0014, 0.0015, 0.0016, 0.00165), 0.0008, 0.8), 1.3, 2.0),
        (8, Device(0.00097, (0.00195, 0.0021, 0.0023, 0.0025), 0.0009, 0.83), 1.0, 2.2),
        (16, Device(0.00114, (0.00215, 0.0023, 0.00245, 0.005), 0.0009, 0.83), 1.08, 2.2),
    ],
)
def test_drafts_that_pay_go_on_whatever_luck_answers_have(num_rows, device, gains, begins) -> None:
    found = [decode(AdaptiveDepth(4), device, num_rows, seed) for seed in range(5)]
    usual = [decode(Plain(), device, num_rows, seed) for seed in range(5)]
    assert fmean(one[0] for one in found) > gains * fmean(one[0] for one in usual)
    assert fmean(one[1] for one in found) / (BATCHES - LEARNT) < begins  # a batch


def test_drafts_beyond_an_answer_s_end_are_nobody_s_good_or_bad_luck() -> None:
    policy = AdaptiveDepth(4)
    near = Sequence(7, Request("7", (1,), 3), 0, [1], 1, Group())
    far = Sequence(8, Request("8", (1,), 99), 0, [1], 1, Group())
    policy.depths([near, far], 0)
    rows = tuple(Row(one.seq_id, (1,), 9, (1,), num_drafts=4) for one in (near, far))
    overall = list(policy.record.overall)
    policy.observe_round(Round(rows), [Verdict(7, (1,) * 3, 4, 2), Verdict(8, (1,), 4, 0)], 0.1)
    learnt = policy.record.overall
    assert learnt[0] == pytest.approx(overall[0], abs=0.2)  # one hit, one miss
    assert learnt[1] > overall[1]  # the second of the row near its end was right
    assert learnt[2:] == overall[2:]  # nobody knows of the third: its answer has no place for it
