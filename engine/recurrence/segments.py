"""Where a batch of recurrences has to stop: to keep a state, and to stop writing it.

    0 ...... capture ...... certain end ...... length
             copy the state  write the state   only record

Rows stop at different places. Each round of stops is one segment: row b runs [low[b], high[b]),
right-padded to the longest. Rows without a capture of their own stop wherever it costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class Recurrence(Protocol):
    """A recurrence over time: anything that maps inputs and a state to outputs and a state."""

    def __call__(
        self, inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Return (outputs, new state); inputs and outputs are (rows, time, ...)."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The stops of a batch: ``stops[i][b]`` is where row b's segment i ends."""

    stops: tuple[Int32s, ...]
    width: int  # padded length of the window

    @property
    def is_whole(self) -> bool:
        """One segment without padding: nothing to cut, nothing to mask."""
        return len(self.stops) == 1 and bool((self.stops[0] == self.width).all())

    def run(
        self, recurrence: Recurrence, inputs: Sequence[mx.array], state: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        """Run all segments; return outputs (rows, width, ...) and the state at every stop.

        Outputs at padding are arbitrary.
        """
        if self.is_whole:
            outputs, state = recurrence(inputs, state, None)
            return outputs, [state]
        low = np.zeros_like(self.stops[0])
        place = np.zeros((len(low), self.width), np.int32)
        pieces, states, offset = [], [], 0
        for high in self.stops:
            lengths = high - low
            span = int(lengths.max())
            if span:
                outputs, state = self._segment(recurrence, inputs, state, low, lengths)
                pieces.append(outputs)
                time = np.arange(self.width, dtype=np.int32)
                inside = (time >= low[:, None]) & (time < high[:, None])
                place = np.where(inside, offset + time - low[:, None], place)
                offset += span
            states.append(state)
            low = high
        joined = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces, axis=1)
        if len(pieces) > 1 or joined.shape[1] != self.width:
            joined = _at(joined, place)
        return joined, states

    def _segment(
        self,
        recurrence: Recurrence,
        inputs: Sequence[mx.array],
        state: mx.array,
        low: Int32s,
        lengths: Int32s,
    ) -> tuple[mx.array, mx.array]:
        span = int(lengths.max())
        time = np.arange(span, dtype=np.int32)
        valid = time < lengths[:, None]
        if (low == low[0]).all():
            start = int(low[0])
            cut = [x[:, start : start + span] for x in inputs]
        else:
            index = np.minimum(low[:, None] + time, self.width - 1)
            cut = [_at(x, index) for x in inputs]
        return recurrence(cut, state, None if valid.all() else mx.array(valid))


def plan_segments(
    captures: Sequence[Sequence[int]], certain: Sequence[int], lengths: Sequence[int], width: int
) -> Segments:
    """Stops for rows with ``captures[b]`` (ascending, at most certain[b]) and drafts from certain.

    The last stop but one is the certain end if any row has drafts; each row's i-th capture is at
    stop ``i + most - len(captures[b])`` where most is the largest number of captures of a row.
    """
    most = max((len(row) for row in captures), default=0)
    stops: list[Int32s] = []
    ends = np.array(certain, np.int32)
    for index in range(most):
        wanted = [
            row[index - most + len(row)] if index >= most - len(row) else None for row in captures
        ]
        furthest = max(stop for stop in wanted if stop is not None)
        free = [
            min([furthest, int(ends[b]), *captures[b][:1]]) if stop is None else stop
            for b, stop in enumerate(wanted)
        ]
        stops.append(np.array(free, np.int32))
    stops.append(ends)
    total = np.array(lengths, np.int32)
    if (total != ends).any():
        stops.append(total)
    return Segments(tuple(stops), width)


def _at(x: mx.array, index: Int32s) -> mx.array:
    """x[b, index[b, t]] for (rows, time, ...) arrays."""
    spread = mx.array(index.reshape(*index.shape, *(1,) * (x.ndim - 2)))
    return mx.take_along_axis(x, mx.broadcast_to(spread, (*index.shape, *x.shape[2:])), axis=1)
