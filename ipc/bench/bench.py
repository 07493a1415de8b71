"""Runs workloads on a loaded engine, one after the other, each with a cold cache of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from engine.sampling_params import SamplingParams

from .arrivals import Arrivals
from .machine import engine_facts, load_average, machine, resident_bytes, versions
from .measure import MeasuredEngine, measure
from .prompts import Prompts
from .record import make_record
from .workloads import Workload

WARM_UP_ROWS = 2
WARM_UP_TOKENS = 4


class DescribedEngine(MeasuredEngine, Protocol):
    """An engine that can say what was loaded."""

    def describe(self) -> Mapping[str, Any]:
        """Layers, memory, device, BLAS."""


class Bench:
    """An engine and the facts that every record states beside the figures.

    ``options`` are those the engine was loaded with, ``command`` what a reader has to type.
    """

    def __init__(
        self,
        engine: DescribedEngine,
        *,
        options: Mapping[str, Any],
        command: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._sleep = sleep
        self._prompts = Prompts.bundled()
        self._num_runs = 0
        self._facts = {
            "model": engine.describe().get("model"),
            "engine": engine_facts(engine.describe()),
            "options": dict(options),
            "versions": versions(),
            "machine": machine(),
            "command": " ".join(command),
        }

    def warm_up(self) -> None:
        """Run a few tokens that no record counts: first uses of things take longer."""
        params = SamplingParams(max_tokens=WARM_UP_TOKENS, salt="warm-up", ignore_eos=True)
        for row in range(WARM_UP_ROWS):
            self._engine.submit("Once upon a time", params, request_id=f"warm-up/{row}")
        while self._engine.has_work:
            self._engine.step()

    def run(
        self,
        workload: Workload,
        arrivals: Arrivals,
        *,
        num_sessions: int | None = None,
        num_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Run one workload; return its record. RequestError if the engine refuses a prompt."""
        self._num_runs += 1
        sessions = [
            session.salted(f"run-{self._num_runs}")
            for session in workload.sessions(self._prompts, num_sessions, num_tokens)
        ]
        date = datetime.now(UTC).isoformat(timespec="seconds")
        busy = load_average()
        measured = measure(self._engine, sessions, arrivals, self._clock, self._sleep)
        return {
            **make_record(workload.name, arrivals, measured),
            "resident_bytes": resident_bytes(),
            "load_average": {"before": busy, "after": load_average()},
            "date": date,
            **self._facts,
        }
