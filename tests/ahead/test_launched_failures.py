"""Failures at every point of a round that runs ahead: undone, and the answers are the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ahead_engines import (
    PROMPTS,
    SAMPLED,
    Broken,
    assert_nothing_left,
    by_request,
    drive,
    engine_of,
    fail_at,
    said,
    submit_all,
)

from engine.answer import Answer
from engine.engine import Engine
from scheduler.round import UNKNOWN

POINTS: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "plan ahead": lambda engine: (engine.scheduler, "plan_ahead"),
    "launch": lambda engine: (engine.parts.executor, "launch"),
    "forward": lambda engine: (engine.parts.executor.forward, "hidden"),
    "logits": lambda engine: (engine.parts.executor.forward, "logits"),
    "begin": lambda engine: (engine._output, "begin"),
    "store": lambda engine: (engine.parts.executor.store, "store"),
    "layer": lambda engine: (engine.parts.executor.store.layers[0], "store"),
    "take": lambda engine: (engine._output, "take"),
    "read": lambda engine: (engine.parts.executor, "read"),
    "count": lambda engine: (engine._counter, "count"),
}


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("calls", [{1}, {2}, {5, 6}, {8}], ids=str)
@pytest.mark.parametrize("point", POINTS)
def test_a_failure_anywhere_is_undone_and_the_answers_are_the_same(
    model_type: str,
    point: str,
    calls: set[int],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = replace(SAMPLED, max_tokens=8)
    reference = engine_of(model_type, ahead=False)
    expected = [answer.token_ids for answer in reference.generate(PROMPTS, params)]
    engine = engine_of(model_type, ahead=True)
    raised = fail_at(monkeypatch, *POINTS[point](engine), calls, error())
    submit_all(engine, [(prompt, params) for prompt in PROMPTS])
    answers: dict[str, Answer] = {}
    while engine.has_work:
        try:
            deltas = engine.step()
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
            continue
        for delta in deltas:
            answers.setdefault(delta.request_id, Answer(delta.request_id, 0, 0)).add(delta)

    assert raised == sorted(calls)
    assert [answers[f"r{number}"].token_ids for number in range(4)] == expected
    assert {answer.finish_reason for answer in answers.values()} == {"length"}
    assert engine.stats().scheduler.failures == len(calls)
    assert_nothing_left(engine)


def test_a_request_that_fails_only_when_it_is_launched_ahead_is_run_step_by_step(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(SAMPLED, max_tokens=8)
    reference = engine_of(model_type, ahead=False)
    expected = [answer.token_ids for answer in reference.generate(PROMPTS, params)]
    engine = engine_of(model_type, ahead=True)
    begin = engine._output.begin

    def failing(wanted: Any, logits: Any) -> Any:
        if any(
            one.window.row.seq_id == 2 and one.window.row.tokens == (UNKNOWN,) for one in wanted
        ):
            raise Broken
        return begin(wanted, logits)

    monkeypatch.setattr(engine._output, "begin", failing)
    submit_all(engine, [(prompt, params) for prompt in PROMPTS])
    found = by_request(drive(engine, {}))

    assert [said(found[f"r{number}", 0]) for number in range(4)] == expected
    assert {deltas[-1].finish_reason for deltas in found.values()} == {"length"}
