"""Rounds run on ahead behind a look that found nothing, and say what they would have said."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
from ahead_engines import assert_nothing_left, by_request, said

from engine.answer import Delta
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.loading import load
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.depth import NoDrafts
from scheduler.round import Row
from scheduler.sequence import Sequence

NUM_ROWS, MAX_TOKENS, EVERY = 3, 30, 4


class LooksNowAndThen(NoDrafts):
    """Asks for two drafts where the first row has a multiple of EVERY tokens, then rests."""

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> Seq[int]:
        return [0 if sequences[0].num_generated % EVERY else 2] * len(sequences)

    def rests(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        return (sequences[0].num_generated + 1) % EVERY > 0


class SomeParts(Parts):
    def make_depth_policy(self) -> LooksNowAndThen:
        return LooksNowAndThen()


def parts_of(*, ahead: bool) -> Parts:
    sizes = {"max_rows": NUM_ROWS, "max_context": 64, "num_blocks": 30, "check": True}
    options = EngineOptions(speculate=2, drafter="lookup", async_scheduling=ahead, **sizes)
    parts = build_parts(load("demo"), options)
    return SomeParts(**{name: getattr(parts, name) for name in parts.__dataclass_fields__})


def steps(engine: Engine) -> list[list[Delta]]:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, ignore_eos=True)
    for number in range(NUM_ROWS):
        engine.submit([number + 5, 7, 9], replace(params, seed=number))
    found = []
    while engine.has_work:
        found.append(engine.step())
    assert_nothing_left(engine)
    assert engine.stats().scheduler.failures == 0
    return found


def answers(of: list[list[Delta]]) -> Any:
    deltas = by_request([delta for step in of for delta in step])
    return {key: said(own) for key, own in deltas.items()}


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("drafts", [(), (1, 2)])
def test_a_round_is_launched_behind_a_look_unless_drafts_are_run(
    drafts: tuple[int, ...], in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(steps(Engine(parts_of(ahead=False))))
    parts = parts_of(ahead=True)
    engine, executor = Engine(parts), parts.executor
    executor.in_order = in_order
    behind: list[int] = []  # rows that are launched behind each look
    read, looked = executor.read, []

    def propose(rows: Seq[Row], choose: object) -> dict[int, tuple[int, ...]]:
        looked.append(len(rows))
        return {rows[0].seq_id: drafts[: rows[0].num_drafts]} if drafts else {}

    def reading(*args: Any) -> Any:
        if len(looked) > len(behind):
            behind.append(len(engine.scheduler.launched))
        return read(*args)

    monkeypatch.setattr(executor.drafter, "propose", propose)
    monkeypatch.setattr(executor, "read", reading)

    assert answers(steps(engine)) == expected
    assert len(looked) >= MAX_TOKENS // EVERY
    assert set(behind) == ({0} if drafts else {NUM_ROWS})
