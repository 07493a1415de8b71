"""A worker whose engine stamps each token with the time it was made, at a pace of its own."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipc.fake_engine import FakeDelta
from ipc.served_engine import LoadedEngine
from ipc.worker import Worker

from .beat import Beat


@dataclass(frozen=True)
class Pace:
    """How often the fake engine steps, and whether a step is one request's turn or everybody's."""

    step_seconds: float
    spread: bool = False

    @classmethod
    def of(cls, gap_seconds: float, num_clients: int, *, spread: bool) -> "Pace":
        """Return the pace at which each client gets a token every ``gap_seconds``."""
        return cls(gap_seconds / num_clients if spread else gap_seconds, spread)

    def words(self) -> tuple[str, str]:
        """Return what names it on a command line."""
        return str(self.step_seconds), "spread" if self.spread else "together"


@dataclass
class StampEngine:
    """Gives requests one token a step; the text is when."""

    pace: Pace
    running: dict[str, None] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    beat: Beat = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.beat = Beat(self.pace.step_seconds)

    @property
    def has_work(self) -> bool:
        return len(self.running) > len(self.paused)

    def submit(self, prompt: Any, params: Any, *, request_id: str, **_: Any) -> str:
        self.running[request_id] = None
        return request_id

    def step(self) -> list[FakeDelta]:
        if self.pace.step_seconds:
            self.beat.wait()
        ready = [each for each in self.running if each not in self.paused]
        if self.pace.spread and ready:
            self.steps += 1
            ready = [ready[self.steps % len(ready)]]
        stamp = f"{time.monotonic_ns()} "
        return [FakeDelta(each, 0, stamp, (7,)) for each in ready]

    def cancel(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        self.paused.discard(request_id)

    def pause(self, request_id: str) -> None:
        self.paused.add(request_id)

    def resume(self, request_id: str) -> None:
        self.paused.discard(request_id)

    def stats(self) -> Mapping[str, Any]:
        return {"num_running": len(self.running)}


def main(address: str, step_seconds: str, how: str) -> None:
    """Serve the broker at ``address``."""
    pace = Pace(float(step_seconds), how == "spread")

    def load() -> LoadedEngine:
        return LoadedEngine(StampEngine(pace), dict, ("stamp",), 1024, 1024)

    Worker(address, load).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
