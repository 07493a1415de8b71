"""A clock that only moves when it is told to, and an engine whose every step takes a second."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from engine.answer import Delta, Usage
from engine.phases import PhaseSeconds
from engine.sampling_params import SamplingParams
from engine.statistics import EngineStats
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler


@dataclass
class Clock:
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class ToyEngine:
    """One token a step and row; a request ends after its max_tokens, or at once if it is to fail.

    Every step it decodes takes a second: 0.25 of it plan, 0.5 of it device.
    """

    clock: Clock
    rows: int = 2
    tokens_a_step: int = 1
    failing: str = "no request's id"
    waiting: deque[str] = field(default_factory=deque)
    running: list[str] = field(default_factory=list)
    asked: dict[str, tuple[Any, SamplingParams]] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    rows_stepped: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str) -> str:
        self.asked[request_id] = prompt, params
        self.said[request_id] = 0
        self.waiting.append(request_id)
        return request_id

    def has_begun(self, request_id: str) -> bool:
        return request_id not in self.waiting

    def step(self) -> list[Delta]:
        while self.waiting and len(self.running) < self.rows:
            self.running.append(self.waiting.popleft())
        self.clock.now += 1
        self.steps += 1
        self.rows_stepped += len(self.running)
        deltas = [self._advance(request_id) for request_id in self.running]
        ended = [delta.request_id for delta in deltas if delta.finish_reason]
        self.running = [each for each in self.running if each not in ended]
        return deltas

    def _advance(self, request_id: str) -> Delta:
        most = self.asked[request_id][1].max_tokens
        if request_id == self.failing:
            usage = Usage(10, 0)
            return Delta(request_id, 0, "", (), None, "error", usage, "it was to fail")
        gained = min(self.tokens_a_step, most - self.said[request_id])
        self.said[request_id] += gained
        done = self.said[request_id] == most
        usage = Usage(10, most, cached_tokens=4) if done else None
        reason = "length" if done else None
        return Delta(request_id, 0, "la" * gained, (7,) * gained, None, reason, usage)

    def stats(self) -> EngineStats:
        scheduler = Scheduler(SchedulerConfig(num_blocks=11, max_rows=1)).stats()
        width = self.rows_stepped / max(1, self.steps)
        return EngineStats(
            scheduler=replace(
                scheduler,
                free_blocks=9 - 2 * len(self.running),
                cached_blocks=1,
                prompt_tokens=6 * len(self.said),
                lookup_tokens=8 * len(self.said),
                hit_tokens=4 * len(self.said),
                preemptions=self.steps,
            ),
            num_steps=self.steps,
            num_decode_steps=self.steps,
            mean_batch_width=width,
            mean_decode_width=width,
            step_seconds=float(self.steps),
            phases=PhaseSeconds(plan_seconds=0.25 * self.steps, device_seconds=0.5 * self.steps),
            drafted_by_position=(4 * self.steps, 2 * self.steps) if self.steps else (),
            accepted_by_position=(3 * self.steps, self.steps) if self.steps else (),
            peak_memory_bytes=4096,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "model": "toy",
            "path": "/somebody/s/folder",
            "blas": "abacus (1 thread) from /somebody/s/library",
            "layers": ["attention", "recurrent", "recurrent"],
            "max_rows": self.rows,
        }
