"""What a convolution over time needs of the past: its inputs before a window, in slots.

A slot keeps the inputs before the certain end, and those of the drafts after it: which of them
count is known a round later.
"""

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from ..slots import Slots
from .rows import RecurrentRows


class History:
    """The convolution's inputs around one window of rows."""

    def __init__(self, slots: Slots, rows: RecurrentRows, taps: int) -> None:
        self.rows = rows
        self.taps = taps
        kept = slots.read("history", rows.slots)
        self.kept = kept  # (rows, taps + drafts, channels), as the last window left it
        if rows.fresh is not None:
            kept = mx.where(rows.fresh[:, None, None], 0, kept)
        # (rows, taps, channels), right before the window
        self.before = take_history(kept, rows.folds, taps) if rows.folds.any() else kept[:, :taps]

    def after(self, inputs: mx.array) -> mx.array:
        """What slots are to keep; ``inputs`` (rows, taps + width, channels) begin with before."""
        certain = self.rows.window.stops[self.rows.certain_stop]
        most = int((self.rows.lengths - certain).max())
        ends = np.minimum(certain, inputs.shape[1] - self.taps - most)
        if most == 0 or (ends == certain).all():
            return take_history(inputs, certain, self.taps + most)
        return take_padded(inputs, certain, self.taps + most)

    def at(self, inputs: mx.array, number: int, tokens: int, *, in_fold: bool) -> mx.array:
        """The inputs before a place of row ``number``, (1, taps, channels).

        It lies ``tokens`` after the window's start, or after that of the tokens to be folded.
        """
        source = self.kept if in_fold else inputs
        return mx.contiguous(source[number : number + 1, tokens : tokens + self.taps])


def take_history(inputs: mx.array, ends: Int32s, taps: int) -> mx.array:
    """inputs[b, ends[b] : ends[b] + taps] for (rows, time, channels)."""
    if (ends == ends[0]).all():
        return inputs[:, int(ends[0]) : int(ends[0]) + taps]
    return take_padded(inputs, ends, taps)


def take_padded(array: mx.array, starts: Int32s, count: int) -> mx.array:
    """array[b, starts[b] : starts[b] + count], clipped at the end (the rest is not read)."""
    rows, time = array.shape[:2]
    places = np.minimum(starts[:, None] + np.arange(count), time - 1)
    index = mx.array((places + time * np.arange(rows)[:, None]).astype(np.int32))
    return mx.take(array.reshape(rows * time, *array.shape[2:]), index, axis=0)
