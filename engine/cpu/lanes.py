"""CPU streams that divide one operation among them, each on a core of its own.

MLX runs the operations of a CPU stream one after another on one thread. Parts of an operation that
are given to different streams run at the same time; handing over costs about 0.05 ms, so only
large operations are worth dividing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from .. import blas


@dataclass(frozen=True, eq=False)
class Lanes:
    """The default stream of the CPU and those beside it, for the thread they were made on."""

    streams: tuple[mx.Stream, ...]

    @classmethod
    def make(cls, count: int) -> "Lanes":
        """The default stream of the CPU and ``count - 1`` new ones."""
        cpu = mx.Device(mx.cpu)
        return cls((mx.default_stream(cpu), *(mx.new_stream(cpu) for _ in range(count - 1))))

    @classmethod
    def of_thread(cls) -> "Lanes":
        """This thread's own, as many as ``blas.current()`` says."""
        if not hasattr(_made, "lanes"):
            used = blas.current()
            _made.lanes = cls.make(used.lanes if used is not None else 1)
        lanes: Lanes = _made.lanes
        return lanes

    @cached_property
    def first(self) -> "Lanes":
        """The default stream alone."""
        return Lanes(self.streams[:1])

    @classmethod
    def only(cls) -> "Lanes | None":
        """The lane that all is to stay on for now, see ``alone``; None: operations are divided."""
        only: Lanes | None = getattr(_made, "only", None)
        return only

    @contextmanager
    def alone(self, stream: mx.Stream) -> Iterator[None]:
        """Let what is built meanwhile run on ``stream`` undivided: others have their own part."""
        before = Lanes.only()
        _made.only = next(lane for lane in self._apart if lane.streams[0] is stream)
        try:
            with mx.stream(stream):
                yield
        finally:
            _made.only = before

    @cached_property
    def _apart(self) -> "tuple[Lanes, ...]":
        return tuple(Lanes((stream,)) for stream in self.streams)

    def divide(self, count: int) -> list[tuple[mx.Stream, int, int]]:
        """Cut range(count) into one stretch a lane: (stream, first, end), none of them empty."""
        number = min(len(self.streams), count)
        ends = [count * part // number for part in range(number + 1)]
        return list(zip(self.streams, ends[:-1], ends[1:], strict=False))


_made = threading.local()  # streams belong to threads
