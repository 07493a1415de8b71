"""Layers that begin to run while the next ones are built."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from engine.build import build_parts
from engine.cpu import early_start, products
from engine.cpu.early_start import EarlyStart
from engine.engine import Engine
from engine.loading import load
from engine.options import EngineOptions
from engine.phases import Phases
from engine.sampling_params import SamplingParams


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[mx.array]:
    """What was started, in order."""
    arrays: list[mx.array] = []
    monkeypatch.setattr(early_start.mx, "async_eval", arrays.append)
    return arrays


def run_through(layers: list[Any], x: mx.array) -> mx.array:
    for layer in layers:
        x = layer(x)
    return x


def test_each_layer_starts_as_it_is_built_while_the_engine_runs_them(started) -> None:
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()]
    x = mx.random.normal((2, 4))
    expected = run_through(layers, x)
    early = EarlyStart()
    early.bind(layers)
    run = early.around(lambda tokens, caches: run_through(layers, tokens))
    assert mx.array_equal(run(x, []), expected)
    assert [array.shape for array in started] == [(2, 4)] * 3
    assert mx.array_equal(started[-1], expected)


def test_what_is_waited_for_meanwhile_is_the_device_s(monkeypatch) -> None:
    now = [0.0]
    phases = Phases(lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(early_start.mx, "async_eval", lambda array: pass_time(5))
    layers = [nn.Linear(4, 4)]
    early = EarlyStart()
    early.bind(layers)
    early.waiting = lambda: phases.during("device")

    def run(tokens: mx.array, caches: list[Any]) -> mx.array:
        pass_time(1)
        return run_through(layers, tokens)

    with phases.during("build"):
        early.around(run)(mx.zeros((1, 4)), [])
    assert (phases.seconds.build_seconds, phases.seconds.device_seconds) == (1, 5)


def test_nothing_starts_where_somebody_else_calls_the_model_or_a_run_has_failed(started) -> None:
    layers, others = [nn.Linear(4, 4)], [nn.Linear(4, 4)]
    early = EarlyStart()
    early.bind(layers)

    def fail(tokens: mx.array, caches: list[Any]) -> mx.array:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        early.around(fail)(mx.zeros((1, 4)), [])
    run_through(layers, mx.zeros((1, 4)))
    early.around(lambda tokens, caches: run_through(others, tokens))(mx.zeros((1, 4)), [])
    assert started == []
    assert type(others[0]) is nn.Linear
    assert set(layers[0].parameters()) == {"weight", "bias"}


def test_a_small_model_in_panels_that_starts_early_says_the_same(monkeypatch) -> None:
    def say(backend: str) -> list[list[int]]:
        options = EngineOptions(max_rows=4, num_blocks=80, max_context=256, backend=backend)
        parts = build_parts(load("demo"), options)
        names = {type(layer).__name__ for layer in parts.loaded.model.layers}
        assert any(name.startswith("Starting") for name in names) is (backend == "cpu")
        params = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)
        prompts = ["The sea", "Once upon a time " * 20, "Why?"]
        return [answer.token_ids for answer in Engine(parts).generate(prompts, params)]

    for condition in ("pays_here", "tiles_pay"):
        monkeypatch.setattr(products, condition, lambda: True)
    monkeypatch.setattr(products, "panels_fit", lambda model: True)
    monkeypatch.setattr(products.blas, "set_threads", lambda count: None)
    assert say("cpu") == say("portable")
