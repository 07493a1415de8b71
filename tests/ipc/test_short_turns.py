"""Threads that pass messages on ask for short turns, and change nothing else about themselves."""

import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ipc import short_turns
from ipc.short_turns import Attributes, short_turn

linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in short_turns.NUMBERS, reason="needs Linux"
)


def on_a_thread(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns on a thread that ends with it."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(60)
    return results[0]


@linux
def test_a_thread_has_short_turns_until_it_has_done_with_that() -> None:
    def work() -> list[Attributes | None]:
        seen = [Attributes.read()]
        with short_turn():
            seen.append(Attributes.read())
        return [*seen, Attributes.read()]

    before, within, after = on_a_thread(work)
    assert before is not None
    if before.runtime == 0:
        pytest.skip("this kernel has no turns of a length of one's own")
    assert within is not None
    assert within.runtime == short_turns.NANOSECONDS < before.runtime
    assert within._replace(runtime=before.runtime) == before == after


@linux
def test_a_nice_thread_stays_nice() -> None:
    def work() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 3)
        before = os.getpriority(os.PRIO_PROCESS, 0)
        with short_turn():
            return before, os.getpriority(os.PRIO_PROCESS, 0)

    before, within = on_a_thread(work)
    assert before == within


@linux
def test_a_thread_of_another_kind_is_left_alone() -> None:
    def work() -> tuple[Attributes | None, Attributes | None]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        before = Attributes.read()
        with short_turn():
            return before, Attributes.read()

    before, within = on_a_thread(work)
    assert before == within
    assert before is not None
    assert before.policy == os.SCHED_BATCH


def test_where_there_is_no_such_thing_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_turns, "NUMBERS", {})
    with short_turn():
        assert Attributes.read() is None
