"""Depth by measurement at the engine, on rounds that take as long as the test says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks.acceptance import read_prompts
from engine.build import Parts
from engine.drafting.drafter import Choose
from engine.engine import Engine
from engine.sampling_params import SamplingParams
from scheduler.round import Row

PARAMS = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)


class PassesAndDrafts:
    """A clock: a pass of the target takes a second, each step of drafting ``price`` seconds."""

    def __init__(self, parts: Parts, price: float) -> None:
        self.forward, self.price = parts.executor.forward, price
        self.steps = 0

    def __call__(self) -> float:
        return self.forward.num_calls + self.price * self.steps


@pytest.mark.parametrize(("price", "least", "most"), [(0.1, 2.5, 5.0), (2.0, 1.0, 1.3)])
def test_at_one_row_it_drafts_on_chat_prompts_as_long_as_that_pays(
    demo_parts: Callable[[str], Parts],
    monkeypatch: pytest.MonkeyPatch,
    price: float,
    least: float,
    most: float,
) -> None:
    """Between ``least`` and ``most`` tokens a target pass."""
    parts = demo_parts("mtp")
    clock, drafter = PassesAndDrafts(parts, price), parts.executor.drafter
    assert drafter is not None
    propose = drafter.propose

    def timed(rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        clock.steps += max(row.num_drafts for row in rows)
        return propose(rows, choose)

    monkeypatch.setattr(drafter, "propose", timed)
    engine = Engine(replace(parts, options=replace(parts.options, speculate="auto")), clock)
    prompts = list(read_prompts(parts.loaded, "chat"))[:3]
    passes = tokens = 0
    for prompt in prompts:  # one after the other
        before = parts.executor.forward.num_calls
        (answer,) = engine.generate([prompt], PARAMS)
        passes += parts.executor.forward.num_calls - before - 1  # but the prompt's own
        tokens += len(answer.token_ids) - 1

    assert least <= tokens / passes <= most, (tokens, passes)
