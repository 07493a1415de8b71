"""Something raises in the middle of a round: its rows go on as if nothing had been."""

from collections.abc import Callable
from typing import Any

import pytest
from forced import Forced

from engine.recurrence.delta_layer import DeltaLayer
from scheduler.sequence import Sequence


class Fault(Exception):
    """Raised by these tests."""


def failing_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, but its ``call``-th call raises after it has done its work."""
    count = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        result = function(*arguments, **named)
        if count == call:
            raise Fault
        return result

    return wrapped


def two_in_three(sequence: Sequence) -> str:
    return "RRWR"


def places(forced: Forced) -> dict[str, tuple[Any, str, int]]:
    """Where a round can fail: whose attribute, and at which of its calls."""
    executor = forced.executor
    delta = [layer for layer in executor.store.layers if isinstance(layer, DeltaLayer)]
    found: dict[str, tuple[Any, str, int]] = {
        "copying": (executor.store, "copy", 1),
        "drafting": (executor.drafter, "propose", 1),
        "drafting, in the second step": (forced, "choose", 2),
        "verifying": (executor.forward, "hidden", 1),
        "sampling": (forced, "pick", 1),
        "storing": (executor.store, "store", 1),
        "following": (executor.drafter, "follow", 1),
    }
    if delta:  # each layer folds, then runs the pending tokens, then the drafts
        found["folding"] = (delta[0], "recurrence", 1)
        found["folding the last layer"] = (delta[-1], "recurrence", 1)
        found["recording"] = (delta[-1], "recurrence", 3)
    return found


@pytest.mark.parametrize(
    ("family", "drafter"), [("qwen3_5", "mtp"), ("qwen3", "qwen3_5"), ("lfm2", "blind")]
)
def test_a_round_that_raises_anywhere_leaves_nothing_behind(
    family: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = Forced(family, two_in_three, drafter=drafter)
    for number in range(3):
        forced.submit([number, 5, 9, 2, 40, 41], 90)
    for _ in range(3):
        forced.step()
    for place, (owner, name, call) in places(forced).items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing_at(call, getattr(owner, name)))
            forced.step_until(Fault)
        assert all(one.finish is None for one in forced.scheduler.sequences.values()), place
        forced.step()
        forced.check()
        forced.step()  # drafts again
    forced.run(check_every=4)

    stats = forced.scheduler.stats()
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots
