"""Engines of tiny models whose rounds run ahead or not, and what drives and checks them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tiny_models import as_loaded, tiny_model

from engine.answer import Delta
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=30, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, seed=7)
PROMPTS = [[1, 2, 3], [4] * 20, [5, 6], [7] * 40]


class Broken(Exception):
    """What the tests inject."""


@cache
def parts_of(model_type: str) -> Parts:
    options = EngineOptions(
        max_rows=4, num_blocks=60, exact=True, check=True, prompt_tokens_per_round=32
    )
    return build_parts(as_loaded(tiny_model(model_type), model_type), options)


def engine_of(model_type: str, *, ahead: bool, in_order: bool = False, **changes: Any) -> Engine:
    """An engine whose rounds run ahead or not; ``in_order`` as if on kernels that need no wait."""
    parts = parts_of(model_type)
    parts.executor.in_order = in_order
    return Engine(
        replace(
            parts,
            options=replace(parts.options, async_scheduling=ahead),
            scheduler_config=replace(parts.scheduler_config, **changes),
        )
    )


def submit_all(engine: Engine, some: list[tuple[list[int], SamplingParams]]) -> None:
    for number, (prompt, params) in enumerate(some):
        engine.submit(prompt, params, request_id=f"r{number}")


def drive(engine: Engine, script: dict[int, Callable[[], Any]]) -> list[Delta]:
    """Step to the end, doing at some steps what ``script`` says; check that nothing is left."""
    deltas, number = [], 0
    while engine.has_work or any(at >= number for at in script):
        if number in script:
            script[number]()
        deltas += engine.step()
        number += 1
    assert_nothing_left(engine)
    return deltas


def assert_nothing_left(engine: Engine) -> None:
    stats = engine.stats().scheduler
    assert not engine.runs.by_sequence
    assert not engine.runs.by_request
    assert not engine.scheduler.launched
    assert not len(engine.parts.executor.unread)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots


def by_request(deltas: list[Delta]) -> dict[tuple[str, int], list[Delta]]:
    found: dict[tuple[str, int], list[Delta]] = {}
    for delta in deltas:
        found.setdefault((delta.request_id, delta.index), []).append(delta)
    return found


def said(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: set[int], error: BaseException
) -> list[int]:
    """Let ``owner.name`` raise, once it has run, at the given calls; return those that did."""
    original: Callable[..., Any] = getattr(owner, name)
    count, raised = 0, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        result = original(*args, **kwargs)
        if count in calls:
            raised.append(count)
            raise error
        return result

    monkeypatch.setattr(owner, name, failing)
    return raised
