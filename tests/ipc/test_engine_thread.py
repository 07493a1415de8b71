"""The engine's thread: what it makes leaves in order, by a queue that is bounded."""

import queue
import threading
import time
from dataclasses import replace
from typing import Any

from ipc.engine_driver import BeginRun, Command, EngineDied, EngineDriver, Event, Stepped
from ipc.engine_thread import IDLE, MAX_EVENTS, EngineThread
from ipc.fake_engine import FAULT_AFTER, FakeEngine, FakeOptions, fake_tokens
from ipc.messages import Run
from ipc.served_engine import LoadedEngine

RUN = Run("e-1", "", "c", "r", "text", "hi", params={"max_tokens": 400, "seed": 1}, window=1000)


def load(step: float = 0.0) -> LoadedEngine:
    return LoadedEngine(FakeEngine(FakeOptions(step=step)), dict, ("fake",), 8, 16)


def tokens(events: list[Event]) -> list[int]:
    steps = [event for event in events if isinstance(event, Stepped)]
    return [token for step in steps for delta in step for token in delta.token_ids]


def take_all(thread: EngineThread, into: list[Event], until: Any) -> None:
    limit = time.monotonic() + 60
    while not until() and time.monotonic() < limit:
        while not thread.events.empty():
            into.append(thread.events.get())
        time.sleep(0.001)


def test_what_a_run_gains_leaves_in_order() -> None:
    thread = EngineThread(lambda: load(step=0.0005), lambda: None)
    thread.start()
    thread.commands.put(BeginRun(RUN))
    told: list[Event] = []
    take_all(thread, told, until=lambda: len(tokens(told)) >= 400)
    thread.stop()

    assert tokens(told) == list(fake_tokens(b"hi", 1, 0, 0, 400))


def test_the_queue_of_events_is_bounded_and_nothing_is_lost_where_it_is_full() -> None:
    notified = threading.Event()
    thread = EngineThread(load, notified.set)
    thread.start()
    thread.commands.put(BeginRun(RUN))
    assert notified.wait(60)
    assert thread.events.qsize() <= MAX_EVENTS
    told: list[Event] = []
    take_all(thread, told, until=lambda: len(tokens(told)) >= 400)
    thread.stop()

    assert len(tokens(told)) == 400


class Scripted:
    """A queue whose commands come only to those who wait for them."""

    def __init__(self, *commands: Command) -> None:
        self.commands = list(commands)
        self.waits: list[float | None] = []

    def empty(self) -> bool:
        return True

    def get(self, *, block: bool, timeout: float | None) -> Command:
        assert block
        self.waits.append(timeout)
        if not self.commands:
            raise queue.Empty
        return self.commands.pop(0)


def waits(round_seconds: float, num_runs: int, rows: int) -> list[float | None]:
    """Return how long an idle engine waits for each command, until it begins a round."""
    thread = EngineThread(load, lambda: None, clock=lambda: 0.0)
    for _ in range(200):
        thread._patience.observe(round_seconds)
    runs = [BeginRun(replace(RUN, run=f"e-{number}")) for number in range(num_runs)]
    thread.commands = scripted = Scripted(*runs)  # type: ignore[assignment]
    thread._obey(EngineDriver(LoadedEngine(FakeEngine(), dict, ("fake",), rows, 2 * rows)))
    return scripted.waits


def test_runs_at_an_idle_engine_wait_a_moment_for_each_other_while_there_is_room() -> None:
    assert waits(10.0, num_runs=3, rows=8) == [IDLE, 0.002, 0.002, 0.002]
    assert waits(10.0, num_runs=3, rows=2) == [IDLE, 0.002]
    assert waits(0.0, num_runs=3, rows=8) == [IDLE]  # its rounds take no time


def test_what_waits_for_later_gains_is_told_before_the_engines_death() -> None:
    thread = EngineThread(load, lambda: None)
    thread.start()
    thread.commands.put(BeginRun(replace(RUN, text="!raise", linger=100.0)))
    told: list[Event] = []
    take_all(thread, told, until=lambda: any(isinstance(each, EngineDied) for each in told))

    assert tokens(told) == list(fake_tokens(b"!raise", 1, 0, 0, FAULT_AFTER))
    assert isinstance(told[-1], EngineDied)
