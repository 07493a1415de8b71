"""Plain rounds run ahead while a drafter is attached, and drafts begin as if they had not."""

from random import Random

import pytest
from forced import Forced
from test_forced_crossings import CASES, prompt

from engine.drafting import mtp_drafter
from engine.drafting.mtp_drafter import MTPDrafter
from scheduler.sequence import Sequence

each_case = pytest.mark.parametrize(("family", "drafter"), CASES)


class Bursts:
    """Some rounds that rest, then some that draft, in turns; by how many rounds have run."""

    def __init__(self, plain: int, drafting: int) -> None:
        self.plain = plain
        self.period = plain + drafting
        self.forced: Forced | None = None

    def __call__(self, sequence: Sequence) -> str:
        assert self.forced is not None
        number = len(self.forced.forwards)
        if number % self.period < self.plain:
            return ""
        random = Random(f"{sequence.seq_id} {number}")
        return "".join(random.choices("RRRW", k=random.randrange(1, 5)))


def bursts(
    family: str, drafter: str, *, plain: int = 5, drafting: int = 2, in_order: bool = False, **more
) -> Forced:
    script = Bursts(plain, drafting)
    script.forced = Forced(family, script, drafter=drafter, ahead=True, in_order=in_order, **more)
    return script.forced


def num_drafted(forced: Forced) -> int:
    return sum(drafted for rows in forced.accepted.values() for drafted, _ in rows)


@pytest.mark.parametrize(("in_order", "most"), [(False, 64), (True, 3)])
@each_case
def test_whatever_happens_while_rows_run_ahead_is_nowhere_when_they_draft(
    family: str, drafter: str, most: int, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtp_drafter, "MOST_BEHIND", most)
    limits = {"num_blocks": 30, "num_slots": 12, "max_rows": 4, "prompt_tokens_per_round": 8}
    forced = bursts(family, drafter, in_order=in_order, **limits)
    random = Random(f"{family} {drafter} {most}")
    scheduler = forced.scheduler
    begin = prompt(0, 12)
    num_submitted = 0
    for number in range(70):
        live = [one.seq_id for one in scheduler.sequences.values() if one.finish is None]
        event, chosen = random.randrange(9), random.choice(live) if live else 0
        if (event < 2 or not live) and num_submitted < 14:
            tail = prompt(num_submitted, random.randrange(1, 6))
            forced.submit([*begin[: random.randrange(12)], *tail], random.randrange(2, 40))
            num_submitted += 1
        elif event == 2:
            scheduler.cancel(chosen)
        elif event == 3:
            scheduler.pause(chosen)
        elif event == 4:
            scheduler.preempt(chosen)
        else:
            for seq_id in live:
                scheduler.resume(seq_id)
        forced.step()
        if any(forced.patterns.values()) or number % 4 == 0:
            forced.check()
    for sequence in list(scheduler.sequences.values()):
        scheduler.resume(sequence.seq_id)
    forced.run(check_every=3)

    assert forced.num_launched > 30
    assert num_drafted(forced) > 8


@each_case
def test_an_ending_that_is_seen_one_row_late_leaves_no_trace(family: str, drafter: str) -> None:
    """Sequences that end by a token, again and again; later ones take their blocks and hits."""
    forced = bursts(family, drafter, num_blocks=24, max_rows=3)
    for number in range(8):
        begun = prompt(1, 9 + number % 3)
        seq_id = len(forced.salts) + 1
        ending = forced.text(seq_id, len(begun) + 4 + number)
        stops = {"eos_ids": frozenset({ending}), "min_tokens": 3}
        [seq_id] = forced.submit(begun, 30, **stops)
        forced.salts[seq_id] = seq_id
        for _ in range(5):
            forced.step()
            forced.check()
    forced.run(check_every=2)

    assert forced.num_launched > 10
    assert num_drafted(forced) > 5


@pytest.mark.parametrize("in_order", [False, True])
@each_case
def test_a_round_that_fails_takes_along_what_the_drafter_left_of_it_for_later(
    family: str, drafter: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = bursts(family, drafter, plain=7, in_order=in_order)
    for number in range(3):
        forced.submit(prompt(number, 7), 40)
    for failing in (2, 4, 5, 6, 9, 13):
        while len(forced.forwards) < failing:
            forced.step()
        with monkeypatch.context() as inside:
            inside.setattr(forced.executor, "read", broken)
            round_ = forced.scheduler.plan()
            with pytest.raises(Broken):
                forced._run(round_)
        forced.scheduler.fail()
        forced.executor.undo(round_, forced.scheduler.launched)
        if isinstance(forced.executor.drafter, MTPDrafter):
            failed = {row.seq_id: row.start for row in round_.rows}
            for row in (row for rows, *_ in forced.executor.drafter._left for row in rows):
                assert row.start < failed.get(row.seq_id, row.certain_end)
            for row in round_.rows:
                stretch = forced.executor.drafter._behind._stretches.get(row.seq_id)
                assert stretch is None or stretch.row(forced.block_size).certain_end <= row.start
        forced.forwards.append(1)
    while forced.scheduler.has_work:
        forced.step()
        forced.check()

    assert num_drafted(forced) > 10


class Broken(Exception):
    """What the test injects."""


def broken(*args: object) -> None:
    raise Broken
