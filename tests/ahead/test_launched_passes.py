"""When forward passes are launched, waited for and forgotten where rounds run ahead."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from ahead_engines import (
    GREEDY,
    PROMPTS,
    Broken,
    assert_nothing_left,
    drive,
    engine_of,
    fail_at,
    parts_of,
    submit_all,
)
from tiny_models import as_loaded, tiny_model

from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.round import UNKNOWN


def num_forwards(engine: Engine, params: list[SamplingParams]) -> int:
    """Forward passes that requests of these parameters take, which start in the same round."""
    forward = engine.parts.executor.forward
    before = forward.num_calls
    submit_all(engine, [([number, 2], one) for number, one in enumerate(params)])
    drive(engine, {})
    return forward.num_calls - before


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 20])
def test_decoding_to_a_limit_runs_no_forward_pass_in_vain(model_type: str, max_tokens: int) -> None:
    params = [replace(GREEDY, max_tokens=max_tokens)] * 3

    assert num_forwards(engine_of(model_type, ahead=True), params) == max_tokens


def test_an_ending_nobody_foresaw_costs_one_forward_pass_at_most(model_type: str) -> None:
    [alone] = engine_of(model_type, ahead=False).generate([[0, 2]], GREEDY)
    stop_at = next(
        n for n, one in enumerate(alone.token_ids) if one not in alone.token_ids[:n] and n
    )
    params = replace(GREEDY, stop_token_ids=(alone.token_ids[stop_at],))

    assert num_forwards(engine_of(model_type, ahead=False), [params]) == stop_at + 1
    assert num_forwards(engine_of(model_type, ahead=True), [params]) == stop_at + 2


def test_the_next_forward_pass_is_begun_before_the_round_is_read(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True)
    events = []
    executor = engine.parts.executor
    launch, read = executor.launch, executor.read

    def launching(round_: Any, *args: Any) -> bool:
        events.append(
            ("launch", [row.tokens == (UNKNOWN,) for row in round_.rows if not row.launched])
        )
        return launch(round_, *args)

    def reading(round_: Any, *args: Any) -> Any:
        events.append(("read", [row.launched for row in round_.rows]))
        return read(round_, *args)

    monkeypatch.setattr(executor, "launch", launching)
    monkeypatch.setattr(executor, "read", reading)
    [answer] = engine.generate([[1, 2, 3]], replace(GREEDY, max_tokens=3))

    assert len(answer.token_ids) == 3
    assert events == [
        ("launch", [False]),
        ("launch", [True]),
        ("read", [False]),
        ("launch", []),
        ("launch", [True]),
        ("read", [True]),
        ("launch", []),
        ("read", [True]),
    ]


def waits_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Compute a prompt of 100 tokens; return which forward passes each step has waited for."""
    forward, ran, waited = engine.parts.executor.forward, [], []
    hidden, evaluate = forward.hidden, mx.eval

    def running(*args: Any) -> mx.array:
        ran.append(hidden(*args))
        return ran[-1]

    def evaluating(*arrays: Any) -> None:
        asked = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], list) else []
        waited.extend(n for n, one in enumerate(ran) if any(one is array for array in asked))
        evaluate(*arrays)

    engine.submit([8] * 100, GREEDY)  # chunks of 32
    seen = []
    with monkeypatch.context() as inside:
        inside.setattr(forward, "hidden", running)
        inside.setattr(mx, "eval", evaluating)
        for _ in range(3):
            before = len(waited)
            engine.step()
            seen.append(waited[before:])
    drive(engine, {})
    return seen


def test_a_round_of_chunks_waits_for_the_one_before_it(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True, in_order=True)

    assert waits_for(engine, monkeypatch) == [[], [0], [1]]


def test_a_round_that_failed_is_not_evaluated_again(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True, in_order=True)
    fail_at(monkeypatch, engine.parts.executor, "launch", {1}, Broken())

    assert waits_for(engine, monkeypatch) == [[], [], [1]]


def test_what_was_launched_for_nobody_is_forgotten(model_type: str) -> None:
    engine = engine_of(model_type, ahead=True)
    submit_all(engine, [(prompt, GREEDY) for prompt in PROMPTS[:2]])
    for _ in range(4):
        engine.step()
    assert len(engine.parts.executor.unread) == 2
    engine.pause("r0")
    engine.step()
    assert len(engine.parts.executor.unread) == 2
    engine.scheduler.preempt(1)
    engine.step()
    assert len(engine.parts.executor.unread) == 1
    engine.cancel("r1")
    engine.resume("r0")
    drive(engine, {})


def test_the_last_request_leaves_nothing_behind_when_it_is_cancelled(model_type: str) -> None:
    engine = engine_of(model_type, ahead=True)
    engine.submit(PROMPTS[0], GREEDY, request_id="only")
    for _ in range(3):
        engine.step()
    assert len(engine.parts.executor.unread) == 1
    engine.cancel("only")

    [delta] = engine.step()
    assert delta.finish_reason == "cancelled"
    assert_nothing_left(engine)


def test_rounds_run_ahead_where_kernels_run_in_order_or_where_they_are_told_to() -> None:
    parts = parts_of("qwen3")
    chosen = {
        (choice, in_order): with_order(parts, choice, in_order)
        for choice in (None, True, False)
        for in_order in (False, True)
    }

    assert chosen == {
        (None, False): False,
        (None, True): True,
        (True, False): True,
        (True, True): True,
        (False, False): False,
        (False, True): False,
    }
    with pytest.raises(ValueError, match="async_scheduling must be True, False or None, not 'on'"):
        EngineOptions(async_scheduling="on")


def with_order(parts: Parts, choice: bool | None, in_order: bool) -> bool:
    executor = parts.executor
    executor.in_order = in_order
    try:
        return replace(parts, options=replace(parts.options, async_scheduling=choice)).runs_ahead
    finally:
        executor.in_order = False


def test_a_drafter_that_rests_lets_rounds_run_ahead_and_costs_no_forward_pass() -> None:
    """With one round in flight per token, and all of them launched before they are named."""
    loaded = as_loaded(tiny_model("qwen3"), "qwen3")
    options = EngineOptions(
        max_rows=2, num_blocks=40, async_scheduling=True, drafter="lookup", speculate="auto"
    )
    engine = Engine(build_parts(loaded, options))
    engine.scheduler._depth.max_depth = 0  # nothing ever pays
    launched = []
    while engine.has_work or not launched:
        if not launched:
            engine.submit(PROMPTS[0], replace(GREEDY, max_tokens=9))
        engine.step()
        launched.append(len(engine.scheduler.launched))

    assert launched == [*[1] * 8, 0]
