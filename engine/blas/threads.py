"""How many threads pay for skinny products on this machine, right now."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from ..cgroup import cpu_quota
from .library import Library, Matrix

_ROWS = (1, 8, 32)
_LARGE = (1024, 1024)  # output and input channels of one weight, cut from a 0.6B model
_SMALL = (704, 256)  # and from a model of ten million parameters
_SMALL_REPEATS = 4
_ROUNDS = 8
_ENOUGH = 3  # rounds after which a hopeless number is given up
_BUDGET_S = 0.2
_WORTH = 0.85  # a thread more has to save this much, or the core is better left to others


def thread_limit(asked: int | None = None, root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, its cgroup's quota and ``asked``."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    if quota is not None:
        cores = min(cores, max(1, int(quota)))
    return min(cores, asked) if asked else cores


def choose_threads(
    pass_seconds: Callable[[int], float],
    limit: int,
    *,
    budget_s: float = _BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return how many threads to use, at most ``limit``; ``pass_seconds(n)`` times n threads once.

    Doubles while the larger number's median beats the smaller number's best. On a busy machine
    threads wait for each other, which shows in the median and not in the best: fewer win.
    """
    deadline = clock() + budget_s
    chosen = 1
    while chosen < limit:
        more = min(2 * chosen, limit)
        pass_seconds(more)  # starts the threads
        few, many = [], []
        for _ in range(_ROUNDS):
            few.append(pass_seconds(chosen))
            many.append(pass_seconds(more))
            if clock() > deadline:
                return chosen
            if len(many) >= _ENOUGH and min(many) > _WORTH * min(few):
                return chosen
        if median(many) > _WORTH * min(few):
            break
        chosen = more
    return chosen


class SkinnyProducts:
    """One pass over the products that matter when few rows are decoded."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._products = []
        for (outputs, inputs), repeats in ((_LARGE, 1), (_SMALL, _SMALL_REPEATS)):
            w = Matrix(outputs, inputs)
            for rows in _ROWS:
                self._products += [(Matrix(rows, inputs), w, Matrix(rows, outputs))] * repeats

    def pass_seconds(self, threads: int) -> float:
        """Seconds of one pass with ``threads`` threads."""
        self._library.set_threads(threads)
        start = time.perf_counter()
        for x, w, out in self._products:
            self._library.multiply(x, w, out)
        return time.perf_counter() - start
