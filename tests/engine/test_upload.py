"""Memory that host and device share, by turns, without a device."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.cuda import host_array, upload
from engine.cuda.compiled_body import CompiledBody
from engine.cuda.host_array import (
    DEVICE,
    HOST,
    LET_ACCESS,
    LET_ACCESS_NO_MORE,
    PAGE,
    PREFER,
    PREFER_NO_MORE,
    HostArray,
)
from engine.cuda.upload import TURNS, Upload
from engine.forward import Forward


def numbers(*given: int) -> np.ndarray:
    return np.array(given, np.int32)


def test_what_the_host_writes_is_what_the_array_holds() -> None:
    array = HostArray(5)
    array.numbers[:5] = 7, 8, 9, 10, 11
    assert array.array.shape == (PAGE,)
    assert array.array[:6].tolist() == [7, 8, 9, 10, 11, 0]
    assert HostArray(PAGE + 1).array.shape == (2 * PAGE,)


def test_memory_stays_with_the_host_as_long_as_the_array_lives(monkeypatch) -> None:
    """MLX gives it to arrays of the device's afterwards, which must not be read over the bus."""
    advised: list[tuple[int, int, int]] = []

    class Driver:
        def cuMemAdvise_v2(  # noqa: N802  # its name in the driver
            self, at: Any, size: Any, advice: int, where: Any
        ) -> int:
            assert (at.value, size.value) == place
            advised.append((advice, where.kind, where.number))
            return 0

    given = mx.array(np.zeros((PAGE,), np.int32))
    place = np.array(given, copy=False).ctypes.data, PAGE * 4
    monkeypatch.setattr(host_array, "driver", Driver)
    monkeypatch.setattr(host_array.mx, "array", lambda _: given)
    array = HostArray(1)
    assert advised == [(PREFER, HOST, 0), (LET_ACCESS, DEVICE, 0)]
    advised.clear()
    del array
    assert advised == [(PREFER_NO_MORE, HOST, 0), (LET_ACCESS_NO_MORE, DEVICE, 0)]


def test_parts_lie_one_after_the_other() -> None:
    told = Upload().write([numbers(1, 2), numbers(3, 4, 5, 6).reshape(2, 2)])
    assert told[:6].tolist() == [1, 2, 3, 4, 5, 6]


def test_numbers_are_overwritten_only_once_the_run_that_reads_them_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[Any] = []
    evaluate = mx.eval
    monkeypatch.setattr(upload.mx, "eval", lambda *all: (waited.extend(all), evaluate(*all)))
    turns, told, done = Upload(), [], []
    for run in range(2 * TURNS):
        waited.clear()
        told.append(turns.write([numbers(run)]))
        waits = [one for one in waited if any(one is other for other in done)]
        assert [id(one) for one in waits] == [
            id(one) for one in done[: max(0, run + 1 - TURNS)][-1:]
        ]
        done.append(mx.zeros((1,)))
        turns.until(done[-1])
    monkeypatch.undo()
    assert [one[0].item() for one in told[-TURNS:]] == list(range(TURNS, 2 * TURNS))
    assert len({id(one) for one in told[-TURNS:]}) == TURNS


def test_an_array_that_is_too_small_is_replaced() -> None:
    turns = Upload()
    for size in (1, 1, 1, 1, PAGE + 1):
        told = turns.write([np.full((size,), size, np.int32)])
        turns.until(told)
    assert told.size == 2 * PAGE
    assert told[PAGE].item() == PAGE + 1


def test_a_body_forgets_a_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next run would evaluate it, which writes to pages that are others' by now."""
    body = CompiledBody(lambda tokens, _: tokens, [])
    failed = mx.zeros((1,), mx.bfloat16) + 1
    body._chained = failed
    body._upload.write([numbers(1)])
    body._upload.until(failed)
    forward = Forward.__new__(Forward)
    forward.run_body = body
    waited: list[Any] = []
    monkeypatch.setattr(upload.mx, "eval", lambda *all: waited.extend(all))
    forward.undo()
    for _ in range(TURNS + 1):
        body._upload.until(body._upload.write([numbers(2)]))
    assert body._chained is not failed
    assert all(one is not failed for one in waited)
