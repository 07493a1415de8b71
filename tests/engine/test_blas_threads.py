"""How many threads are chosen from measured passes; the measurements here are made up."""

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from engine.blas.threads import choose_threads, thread_limit


def passes(**seconds: list[float]) -> Callable[[int], float]:
    """Times of successive passes by number of threads, over and over."""
    endless = {int(name.removeprefix("with_")): cycle(times) for name, times in seconds.items()}
    return lambda threads: next(endless[threads])


def test_threads_double_while_that_pays() -> None:
    assert choose_threads(lambda threads: 1 / threads, 8) == 8
    assert choose_threads(lambda threads: 1 / threads, 6) == 6


def test_doubling_stops_where_it_stops_paying() -> None:
    assert choose_threads(lambda threads: 1 / min(threads, 4), 64) == 4


def test_fewer_threads_win_a_near_tie() -> None:
    assert choose_threads(passes(with_1=[1.0], with_2=[0.9]), 2) == 1
    assert choose_threads(passes(with_1=[1.0], with_2=[0.8, 0.9, 0.9]), 2) == 1


def test_threads_that_sometimes_wait_for_a_core_lose_although_their_best_is_better() -> None:
    assert choose_threads(passes(with_1=[1.0], with_2=[0.5, 8.0, 8.0]), 2) == 1


def test_one_slow_pass_does_not_decide_against_more_threads() -> None:
    assert choose_threads(passes(with_1=[1.0], with_2=[0.5] * 7 + [20.0]), 2) == 2


def test_a_noisy_single_thread_is_judged_by_its_best() -> None:
    assert choose_threads(passes(with_1=[9.0, 9.0, 1.0], with_2=[0.9]), 2) == 1


def test_nothing_is_measured_where_one_core_is_allowed() -> None:
    def never(threads: int) -> float:
        raise AssertionError("measured")

    assert choose_threads(never, 1) == 1


def test_a_measurement_that_takes_too_long_keeps_fewer_threads() -> None:
    seconds = iter(range(1000))

    assert choose_threads(lambda threads: 1 / threads, 8, budget_s=1.5, clock=seconds.__next__) == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
def test_the_limit_is_the_smallest_of_affinity_quota_and_wish(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert thread_limit(root=tmp_path) == cores
    assert thread_limit(1, root=tmp_path) == 1
    assert thread_limit(10_000, root=tmp_path) == cores

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert thread_limit(root=tmp_path) == 1
