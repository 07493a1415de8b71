"""Numbers that the device writes to the host's memory, for the host to read."""

import logging
import threading
import weakref
from collections import defaultdict
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .host_array import HostArray, rounded
from .source import Kernel

logger = logging.getLogger("octavo")
THREADS = 128
BODY = """
  for (int i = threadIdx.x; i < numbers_shape[0]; i += THREADS)
    const_cast<int*>(host)[i] = static_cast<int>(numbers[i]);
  if (threadIdx.x == 0) sent[0] = 0;
"""
HOST_TYPES: dict[mx.Dtype, npt.DTypeLike] = {mx.int32: np.int32, mx.uint32: np.uint32}


class _Free(threading.local):
    """Arrays nobody reads, by size: this thread's own.

    What the device may still write there it writes before what the same thread launches later.
    """

    def __init__(self) -> None:
        self.arrays: defaultdict[int, list[HostArray]] = defaultdict(list)


_free = _Free()


class Sent:
    """Numbers on their way.

    ``done`` must go into an evaluation before its Sent is dropped: then it has its turn before
    whatever is sent to the same place next, which MLX knows nothing of.
    """

    def __init__(self, numbers: mx.array) -> None:
        """``numbers``: int32 or uint32, of any shape."""
        free = _free.arrays[rounded(numbers.size)]
        host = free.pop() if free else HostArray(numbers.size)
        weakref.finalize(self, free.append, host)
        here = host.numbers[: numbers.size].view(HOST_TYPES[numbers.dtype])
        self._numbers = here.reshape(numbers.shape)
        kernel = _kernel(numbers.dtype)
        (self.done,) = kernel([numbers.reshape(-1), host.array], (1, 1, 1), [(4,)], [mx.int32])
        """What is evaluated once they are there."""

    def read(self) -> list[Any]:
        """Return the numbers, as nested lists; ``done`` must have been evaluated."""
        found: list[Any] = self._numbers.tolist()
        return found


@cache
def arrives() -> bool:
    """Whether numbers come through: tried out once, for all that is said depends on it."""
    numbers = [7, (1 << 32) - 1, 5]
    sent = Sent(mx.array(numbers, mx.uint32))
    mx.eval(sent.done)
    if sent.read() == numbers:
        return True
    logger.warning("the device does not write to the host's memory: what it picks is copied")
    return False


@cache
def _kernel(dtype: mx.Dtype) -> Kernel:
    return Kernel(
        "send",
        (),
        BODY,
        ("numbers", "host"),
        ("sent",),
        template=[("T", dtype), ("THREADS", THREADS)],
        threads=THREADS,
    )
