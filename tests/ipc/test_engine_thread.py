"""The engine's thread: what it makes leaves in order, by the queue or the shorter way."""

import threading
import time
from typing import Any

from ipc.engine_driver import BeginRun, Event, Stepped
from ipc.engine_thread import MAX_EVENTS, EngineThread
from ipc.fake_engine import FakeEngine, FakeOptions
from ipc.messages import Run
from ipc.served_engine import LoadedEngine

RUN = Run("e-1", "", "c", "r", "text", "hi", params={"max_tokens": 400, "seed": 1}, window=1000)


def load(step: float = 0.0) -> LoadedEngine:
    return LoadedEngine(FakeEngine(FakeOptions(step=step)), dict, ("fake",), 8, 16)


def tokens(events: list[Event]) -> list[int]:
    steps = [event for event in events if isinstance(event, Stepped)]
    return [token for step in steps for delta in step.deltas for token in delta.token_ids]


def take_all(thread: EngineThread, into: list[Event], until: Any) -> None:
    limit = time.monotonic() + 30
    while not until() and time.monotonic() < limit:
        while not thread.events.empty():
            into.append(thread.events.get())
        time.sleep(0.001)


def test_what_waits_in_the_queue_is_never_overtaken_by_the_shorter_way() -> None:
    told: list[Event] = []
    calls = 0

    def deliver(event: Event) -> bool:
        nonlocal calls
        calls += 1
        if calls % 3:  # somebody is at the wire
            return False
        told.append(event)
        return True

    thread = EngineThread(lambda: load(step=0.0005), lambda: None, deliver)
    thread.start()
    thread.commands.put(BeginRun(RUN))
    take_all(thread, told, until=lambda: len(tokens(told)) >= 400)
    thread.stop()

    alone = FakeEngine(FakeOptions())
    alone.submit("hi", RUN.params, request_id="e-1")
    expected = [token for _ in range(400) for delta in alone.step() for token in delta.token_ids]
    assert tokens(told) == expected
    assert calls > 3


def test_the_queue_of_events_is_bounded_and_nothing_is_lost_where_it_is_full() -> None:
    notified = threading.Event()
    thread = EngineThread(load, notified.set)
    thread.start()
    thread.commands.put(BeginRun(RUN))
    time.sleep(0.2)
    assert notified.is_set()
    assert thread.events.qsize() <= MAX_EVENTS
    told: list[Event] = []
    take_all(thread, told, until=lambda: len(tokens(told)) >= 400)
    thread.stop()

    assert len(tokens(told)) == 400
