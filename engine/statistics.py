"""What an engine has done so far, in plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.round import Round, Verdict
from scheduler.stats import SchedulerStats

from .phases import PhaseSeconds


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The scheduler's numbers, and what running its rounds took."""

    scheduler: SchedulerStats
    num_steps: int  # rounds that ran
    num_decode_steps: int  # those with a row that sampled a token
    mean_batch_width: float  # rows a round
    mean_decode_width: float  # rows that sampled a token, a round that had any
    step_seconds: float
    phases: PhaseSeconds
    drafted_by_position: tuple[int, ...]  # drafts, the first of a window at index 0
    accepted_by_position: tuple[int, ...]
    peak_memory_bytes: int


class StepCounter:
    """Counts rounds as they are executed."""

    def __init__(self) -> None:
        self._steps = 0
        self._rows = 0
        self._decode_steps = 0
        self._decode_rows = 0
        self._seconds = 0.0
        self._drafted: list[int] = []
        self._accepted: list[int] = []

    def count(self, round_: Round, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Count one round that ran for ``seconds``."""
        sampling = sum(row.samples for row in round_.rows)
        self._steps += 1
        self._rows += len(round_.rows)
        self._decode_steps += sampling > 0
        self._decode_rows += sampling
        self._seconds += seconds
        for verdict in verdicts:
            missing = verdict.num_drafted - len(self._drafted)
            self._drafted += [0] * missing
            self._accepted += [0] * missing
            for position in range(verdict.num_drafted):
                self._drafted[position] += 1
                self._accepted[position] += position < verdict.num_accepted

    def stats(
        self, scheduler: SchedulerStats, phases: PhaseSeconds, peak_memory_bytes: int
    ) -> EngineStats:
        """Return the counts so far."""
        return EngineStats(
            scheduler=scheduler,
            num_steps=self._steps,
            num_decode_steps=self._decode_steps,
            mean_batch_width=self._rows / max(1, self._steps),
            mean_decode_width=self._decode_rows / max(1, self._decode_steps),
            step_seconds=self._seconds,
            phases=replace(phases),
            drafted_by_position=tuple(self._drafted),
            accepted_by_position=tuple(self._accepted),
            peak_memory_bytes=peak_memory_bytes,
        )
