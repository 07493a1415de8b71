"""What an engine really holds once it is made, against what was planned before."""

import gc

import mlx.core as mx
import pytest

from engine import build as building
from engine.build import build_parts
from engine.drafting.plan import DrafterPlan, plan_drafter
from engine.loading import load
from engine.memory import DeviceMemory, probe_memory
from engine.options import EngineOptions

DRAFTERS = {
    "plain": {"speculate": "off"},
    "lookup": {"drafter": "lookup", "speculate": 4},
    "mtp": {"drafter": "mtp", "speculate": 8},
    "peer": {"drafter": "peer", "draft_model": "demo-draft", "speculate": 2},
}
CLOSE = 1.01  # the allocator rounds


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_pools_and_drafter_hold_what_was_planned(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EngineOptions(
        backend="portable", max_rows=32, num_blocks=40, max_context=512, **DRAFTERS[drafter]
    )
    loaded, plans = load("demo", dtype=options.dtype), []
    held = 0

    def planning(*args: object) -> DrafterPlan | None:
        plans.append(plan_drafter(*args))
        return plans[-1]

    def probing() -> DeviceMemory:
        nonlocal held
        gc.collect()
        held = mx.get_active_memory()
        return probe_memory()

    monkeypatch.setattr(building, "probe_memory", probing)
    parts = build_parts(loaded, options, planning)
    gc.collect()
    held = mx.get_active_memory() - held

    [plan] = plans
    planned = parts.memory.num_bytes + (0 if plan is None else plan.num_bytes)
    assert planned <= CLOSE * held
    assert held <= CLOSE * planned
