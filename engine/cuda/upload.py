"""What one run after the other is told by the host, read where the host wrote it."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from .host_array import HostArray

TURNS = 4  # arrays that are written by turns: two runs may be in flight


class Upload:
    """Numbers for runs that follow each other."""

    def __init__(self) -> None:
        self._turns: list[tuple[HostArray, mx.array]] = []  # and what is done when it is free
        self._last: HostArray | None = None

    def write(self, parts: Sequence[Int32s]) -> mx.array:
        """Return ``parts`` one after the other, and more behind; ``until`` is to be told next."""
        size = sum(part.size for part in parts)
        array = self._take(size)
        np.concatenate([part.reshape(-1) for part in parts], out=array.numbers[:size])
        self._last = array
        return array.array

    def until(self, done: mx.array) -> None:
        """Say what is evaluated only after the numbers were read: then they may be overwritten."""
        assert self._last is not None, "nothing was written"
        self._turns.append((self._last, done))
        self._last = None

    def _take(self, size: int) -> HostArray:
        if len(self._turns) < TURNS:
            return HostArray(size)
        array, done = self._turns.pop(0)
        mx.eval(done)
        return array if array.array.size >= size else HostArray(size)
