"""Rows and blocks over time, thinned out so that a run of any length keeps about as many."""

from collections.abc import Sequence

from engine.statistics import EngineStats

MOST = 240


class Timeline:
    """Keeps every n-th step; n doubles when there are MOST of them.

    Rows are means since the sample before, so that nothing between two samples is lost; the other
    columns are how things stand. Blocks that earlier runs left cached are cached still.
    """

    def __init__(self, before: EngineStats) -> None:
        self._columns: dict[str, list[float]] = {
            name: [] for name in ("seconds", "rows", "waiting", "held_blocks", "cached_blocks")
        }
        self._total_blocks = before.scheduler.total_blocks
        self._every = 1
        self._steps = 0
        self._last = before

    @property
    def wants_sample(self) -> bool:
        """Whether the step that ends now is one to keep; asked once a step."""
        self._steps += 1
        return (self._steps - 1) % self._every == 0

    def add(self, seconds: float, stats: EngineStats) -> None:
        """Keep how things stand ``seconds`` after the start."""
        scheduler = stats.scheduler
        values = {
            "seconds": round(seconds, 4),
            "rows": self._rows_since(stats),
            "waiting": scheduler.num_waiting,
            "held_blocks": (
                scheduler.total_blocks - scheduler.free_blocks - scheduler.cached_blocks
            ),
            "cached_blocks": scheduler.cached_blocks,
        }
        for name, value in values.items():
            self._columns[name].append(value)
        if len(self._columns["seconds"]) == MOST:
            self._every *= 2
            for column in self._columns.values():
                del column[1::2]

    def described(self) -> dict[str, int | Sequence[float]]:
        """Return the columns, and how many blocks there are."""
        return {**self._columns, "total_blocks": self._total_blocks}

    def _rows_since(self, stats: EngineStats) -> float:
        rounds = stats.num_steps - self._last.num_steps
        rows = [each.mean_batch_width * each.num_steps for each in (self._last, stats)]
        self._last = stats
        return round((rows[1] - rows[0]) / rounds, 2) if rounds else 0.0
