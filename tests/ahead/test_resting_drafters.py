"""What it costs to have a drafter that rests, where rounds run ahead: counted, not timed."""

import sys
from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.speculation import without_drafter
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.loading import load
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.adaptive_depth import AdaptiveDepth

MEMORY = {"max_rows": 8, "max_context": 256, "prefix_cache": False, "async_scheduling": True}
WARM, STEPS = 6, 10
MOST_EXTRA = 9  # calls a step


@cache
def parts_of(drafter: str) -> Parts:
    peer = {"draft_model": "demo-draft"} if drafter == "peer" else {}
    options = EngineOptions(speculate="auto", drafter=drafter, **peer, **MEMORY)
    return build_parts(load("demo"), options)


def calls_of(step: Callable[[], object]) -> float:
    """Calls of Python and C functions, a step."""
    count = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        for _ in range(STEPS):
            step()
    finally:
        sys.setprofile(None)
    return count / STEPS


def let_rest(engine: Engine, num_rows: int) -> None:
    """As if it had turned out that drafts never pay."""
    policy = engine._policy
    if isinstance(policy, AdaptiveDepth):
        rest = policy._rest
        rest.left, rest.num_rows, rest.is_crowded = 1000, num_rows, False
        policy._rows_before = num_rows


def decoding(parts: Parts, num_rows: int) -> Engine:
    """An engine that decodes, and drafts nothing."""
    engine = Engine(parts)
    for number in range(num_rows):
        params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
        engine.submit([number + 5, 7, 9], params)
    for _ in range(WARM):
        let_rest(engine, num_rows)
        engine.step()
    return engine


@pytest.mark.parametrize("num_rows", [1, 6])
@pytest.mark.parametrize("drafter", ["mtp", "peer", "lookup"])
def test_a_drafter_that_rests_takes_few_calls_a_step_at_any_number_of_rows(
    drafter: str, num_rows: int
) -> None:
    parts = parts_of(drafter)
    plain = decoding(without_drafter(parts), num_rows)
    usual = calls_of(plain.step)
    for request_id in list(plain.runs.by_request):
        plain.cancel(request_id)
    while plain.has_work:
        plain.step()
    engine = decoding(parts, num_rows)
    extra = calls_of(engine.step) - usual
    assert extra <= MOST_EXTRA
    assert engine.stats().scheduler.drafted_tokens == 0
    assert len(engine.scheduler.launched) == num_rows
    for request_id in list(engine.runs.by_request):
        engine.cancel(request_id)
    while engine.has_work:
        engine.step()
