"""Panels divided among lanes, and their products put together."""

from collections.abc import Sequence

import mlx.core as mx

from .lanes import Lanes
from .panels import PANEL, Panels

STRETCH = 8192  # outputs at most that a lane makes before it puts their rows together: 1 MiB at 32

Layout = list[tuple[mx.Stream, Panels]]


class DividedPanels:
    """All panels, and which of them each lane takes."""

    def __init__(self, panels: Panels) -> None:
        self.panels = panels
        self._halves: dict[Lanes, Layout] = {}
        self._in_turn: dict[Lanes, Layout] = {}

    def product(self, x: mx.array, lanes: Lanes) -> mx.array:
        """x (rows, inputs) by all panels: (rows, outputs)."""
        if self.panels.count * PANEL > STRETCH * len(lanes.streams):
            return self._by_turns(x, lanes)
        return join([part for _, part in self.parts(x, lanes)])

    def parts(self, x: mx.array, lanes: Lanes) -> list[tuple[mx.Stream, mx.array]]:
        """The product, (panels, rows, PANEL) of each lane and still there, for ``join``."""
        return [(stream, part.times(x, stream)) for stream, part in self.halves(lanes)]

    def halves(self, lanes: Lanes) -> Layout:
        """One stretch of panels a lane."""
        if lanes not in self._halves:
            stretches = lanes.divide(self.panels.count)
            self._halves[lanes] = [(s, self.panels.part(low, end)) for s, low, end in stretches]
        return self._halves[lanes]

    def in_turn(self, lanes: Lanes) -> Layout:
        """Short stretches, the lanes taking turns."""
        if lanes not in self._in_turn:
            each, streams = STRETCH // PANEL, lanes.streams
            self._in_turn[lanes] = [
                (streams[number % len(streams)], self.panels.part(first, first + each))
                for number, first in enumerate(range(0, self.panels.count, each))
            ]
        return self._in_turn[lanes]

    def _by_turns(self, x: mx.array, lanes: Lanes) -> mx.array:
        """Where the cache would not hold all outputs that are to be put in order."""
        joined = []
        for stream, part in self.in_turn(lanes):
            with mx.stream(stream):
                joined.append(part.times(x, stream).swapaxes(0, 1).reshape(x.shape[0], -1))
        return mx.concatenate(joined, axis=1)


def join(parts: Sequence[mx.array]) -> mx.array:
    """Put parts (tiles, rows, tile) together: (rows, outputs)."""
    turned = [part.swapaxes(0, 1) for part in parts]
    axis = 2 if all(part.shape[0] == 1 for part in parts) else 1
    joined = turned[0] if len(turned) == 1 else mx.concatenate(turned, axis=axis)
    return joined.reshape(joined.shape[0], -1)
