"""Recurrent rows divided among lanes: the same bits as undivided, whatever the rows do."""

from typing import Any

import mlx.core as mx
import pytest

from engine.build import build_parts
from engine.engine import Engine
from engine.lanes import Lanes
from engine.loading import load
from engine.options import EngineOptions
from engine.recurrence import delta_layer
from engine.recurrence.delta_layer import DeltaLayer
from engine.recurrence.delta_rule import by_products
from engine.recurrence.gated_delta import DividedWindow
from engine.sampling_params import SamplingParams

PROMPTS = ["Once upon a time", "The", "He said that the old house by the river " * 5, "Why?", "So"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every cache that a gated-delta layer opens; rows are divided whenever there are lanes."""
    caches: list[Any] = []
    really_open = DeltaLayer.open

    def open_and_note(layer: DeltaLayer, view: Any) -> Any:
        caches.append(really_open(layer, view))
        return caches[-1]

    monkeypatch.setattr(delta_layer, "LANE_VALUES", 1)
    monkeypatch.setattr(DeltaLayer, "open", open_and_note)
    return caches


def run(num_lanes: int, **options: Any) -> tuple[list[list[int]], list[mx.array]]:
    """Answers, and the states that are left in the slots."""
    sizes = {"max_rows": 4, "num_blocks": 80, "max_context": 256}
    parts = build_parts(load("demo"), EngineOptions(**sizes, **options))
    layers = [layer for layer in parts.executor.store.layers if isinstance(layer, DeltaLayer)]
    for layer in layers:
        layer.lanes = Lanes.make(num_lanes) if num_lanes else None
        layer.recurrence = by_products  # chunks or not: that depends on the other rows
    engine = Engine(parts)
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
    answers = [answer.token_ids for answer in engine.generate(PROMPTS, params)]
    return answers, [layer.slots.pools["state"] for layer in layers]


@pytest.mark.parametrize("options", [{}, {"speculate": 3, "drafter": "mtp"}], ids=str)
@pytest.mark.parametrize("num_lanes", [2, 3])
def test_dividing_rows_changes_no_bit(opened, num_lanes, options) -> None:
    plain, plain_states = run(0, **options)
    assert not any(isinstance(cache, DividedWindow) for cache in opened)
    divided, divided_states = run(num_lanes, **options)
    widths = {len(cache.parts) for cache in opened if isinstance(cache, DividedWindow)}
    assert max(widths) == num_lanes
    assert divided == plain
    assert all(mx.array_equal(*pair) for pair in zip(divided_states, plain_states, strict=True))
