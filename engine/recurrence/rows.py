"""Rows of a batch as recurrent layers need them: slots, stops, folds and captures."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..batch import Int32s, Window
from .segments import Segments, plan_segments


class RecurrentRows:
    """Windows that run through recurrent layers together, padded to ``width`` tokens."""

    def __init__(self, windows: Sequence[Window], width: int) -> None:
        self.rows = [window.row for window in windows]
        self.width = width
        self.lengths: Int32s = np.array([window.length for window in windows], np.int32)
        self.has_drafts = any(window.drafts for window in windows)
        self.slots = [row.slot or 0 for row in self.rows]
        fresh = np.array([row.start == 0 for row in self.rows])
        self.fresh = mx.array(fresh) if fresh.any() else None
        self.folds: Int32s = np.array([row.fold for row in self.rows], np.int32)
        self.window = plan_segments(
            [
                [c.position - row.start for c in row.captures if c.position >= row.start]
                for row in self.rows
            ],
            [len(row.tokens) for row in self.rows],
            [window.length for window in windows],
            width,
        )
        self.fold = self._plan_fold()
        self.captures = self._find_captures()

    @property
    def certain_stop(self) -> int:
        """Number of the window's stop at which the state is written."""
        return len(self.window.stops) - 1 - self.has_drafts

    def _plan_fold(self) -> Segments | None:
        """Stops of the fold: captures inside it, then its end. None if nothing is to be folded."""
        if not self.folds.any():
            return None
        captures = [
            [row.fold - (row.start - c.position) for c in row.captures if c.position < row.start]
            for row in self.rows
        ]
        ends = [row.fold for row in self.rows]
        return plan_segments(captures, ends, ends, max(ends))

    def _find_captures(self) -> list[tuple[int, bool, int, int]]:
        """Every capture as (row, whether inside the fold, stop number, slot)."""
        found: list[tuple[int, bool, int, int]] = []
        if not any(row.captures for row in self.rows):
            return found
        most_inside, most_after = (
            max(sum((c.position < row.start) is is_fold for c in row.captures) for row in self.rows)
            for is_fold in (True, False)
        )
        for number, row in enumerate(self.rows):
            inside = [c for c in row.captures if c.position < row.start]
            after = [c for c in row.captures if c.position >= row.start]
            for kept, most, is_fold in ((inside, most_inside, True), (after, most_after, False)):
                for index, capture in enumerate(kept):
                    found.append((number, is_fold, most - len(kept) + index, capture.slot))
        return found
