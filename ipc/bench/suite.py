"""Which runs there are: those that were asked for, or all that a report shows."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .arrivals import Arrivals
from .workloads import WORKLOADS, Workload

SWEPT = "offline"  # its throughput is shown against the width of the batch
LOADED = "shared-prompt"  # its latency is shown against the load
LOADS = (0.25, 0.5, 0.75, 1.0)  # of what the engine did when all users came at once


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to make; ``num_sessions`` None leaves it to the workload."""

    workload: Workload
    arrivals: Arrivals
    num_sessions: int | None = None


def default_arrivals(workload: Workload) -> Arrivals:
    """Return how a workload's users come when nothing else is said."""
    return Arrivals(concurrency=workload.concurrency)


def chosen(
    names: Sequence[str], arrivals: Sequence[Arrivals], num_sessions: int | None, repeat: int
) -> Iterator[Planned]:
    """Yield each named workload under each arrival process, ``repeat`` times over."""
    for _ in range(repeat):
        for name in names:
            workload = WORKLOADS[name]
            for process in arrivals or [default_arrivals(workload)]:
                yield Planned(workload, process, num_sessions)


def everything(
    max_rows: int, num_sessions: int | None, seed: int
) -> Generator[Planned, dict[str, Any], None]:
    """Yield all workloads, then batch widths, then loads; takes each run's record back.

    Loads are shares of the rate that the engine managed when all came at once: the same curve is
    worth looking at on any machine.
    """
    rate: float | None = None
    for workload in WORKLOADS.values():
        record = yield Planned(workload, default_arrivals(workload), num_sessions)
        if workload.name == LOADED:
            rate = record["sessions_per_second"]
    for width in widths(max_rows):
        arrivals = Arrivals(concurrency=width)
        yield Planned(WORKLOADS[SWEPT], arrivals, num_sessions or max(4, 2 * width))
    for load in LOADS if rate else ():
        assert rate is not None
        arrivals = Arrivals(rate=float(f"{load * rate:.3g}"), seed=seed)
        yield Planned(WORKLOADS[LOADED], arrivals, num_sessions)


def widths(max_rows: int) -> list[int]:
    """Return the powers of two below ``max_rows``, and it."""
    below = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows]
    return [*below, max_rows]
