"""Gated-delta layers whose states are written now and then keep what the others keep."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.build import build_parts
from engine.cpu.lanes import Lanes
from engine.engine import Engine
from engine.loading import load
from engine.options import EngineOptions
from engine.recurrence import deferred_layer
from engine.recurrence.deferred_layer import DeferredLayer
from engine.recurrence.delta_layer import DeltaLayer
from engine.recurrence.windows import DividedWindow
from engine.sampling_params import SamplingParams

PROMPTS = ["Once upon a time", "The", "He said that the old house by the river " * 5, "Why?", "So"]
SPECULATION: list[dict[str, Any]] = [
    {},
    {"speculate": 3, "drafter": "mtp"},
    {"speculate": 2, "drafter": "lookup"},
    {"speculate": 2, "drafter": "peer", "draft_model": "demo"},
]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[DividedWindow]:
    """Every cache that a deferred layer opens."""
    caches: list[DividedWindow] = []
    really_open = DeferredLayer.open

    def open_and_note(layer: DeferredLayer, view: Any) -> DividedWindow:
        caches.append(really_open(layer, view))
        return caches[-1]

    monkeypatch.setattr(DeferredLayer, "open", open_and_note)
    return caches


def run(
    backend: str, temperature: float = 0.0, lanes: int = 1, **options: Any
) -> tuple[list[list[int]], list[float], list[mx.array]]:
    """Answers, the log-probabilities of their tokens, and the states left in the slots."""
    sizes = {"max_rows": 4, "num_blocks": 80, "max_context": 256, "backend": backend}
    parts = build_parts(load("demo"), EngineOptions(**sizes, **options))
    layers = parts.executor.store.layers
    recurrent = [one for one in layers if isinstance(one, DeltaLayer | DeferredLayer)]
    for layer in recurrent:
        if isinstance(layer, DeferredLayer):
            layer.lanes = Lanes.make(lanes)
    engine = Engine(parts)
    params = SamplingParams(
        max_tokens=40, temperature=temperature, seed=5, ignore_eos=True, logprobs=1
    )
    answers = list(engine.generate(PROMPTS, params))
    logprobs = [entry.logprob for answer in answers for entry in answer.logprobs or ()]
    assert recurrent
    mx.eval([array for layer in recurrent for array in layer.arrays])
    states = [layer.slots.pools["state"] for layer in recurrent]
    return [answer.token_ids for answer in answers], logprobs, states


@pytest.mark.parametrize("options", SPECULATION, ids=str)
def test_answers_are_those_of_states_written_at_once(opened, options) -> None:
    ids, logprobs, states = run("portable", **options)
    assert not opened
    deferred_ids, deferred_logprobs, deferred_states = run("cpu", **options)
    assert opened
    assert deferred_ids == ids
    assert np.allclose(deferred_logprobs, logprobs, atol=2e-3)
    for mine, theirs in zip(deferred_states, states, strict=True):
        assert mx.allclose(mine, theirs, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("options", SPECULATION[:2], ids=str)
def test_dividing_the_rows_among_lanes_changes_rounding_only(monkeypatch, opened, options) -> None:
    ids, logprobs, states = run("cpu", 0.8, **options)
    assert {len(cache.parts) for cache in opened} == {1}
    monkeypatch.setattr(deferred_layer, "LANE_VALUES", 1)
    for lanes in (2, 3):
        opened.clear()
        divided, other_logprobs, other_states = run("cpu", 0.8, lanes, **options)
        assert max(len(cache.parts) for cache in opened) == lanes
        assert divided == ids
        assert np.allclose(other_logprobs, logprobs, atol=2e-3)
        for mine, theirs in zip(other_states, states, strict=True):
            assert mx.allclose(mine, theirs, rtol=1e-2, atol=2e-3)
