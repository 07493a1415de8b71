"""How the host gets to read what a device has made; the device is stood for here."""

import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine import readback
from engine.cuda import sent
from engine.readback import Readback


class Sender:
    """Stands for the kernel: writes to the host's memory at once, or not at all."""

    def __init__(self, *, writes: bool = True) -> None:
        self.writes = writes
        self.arrays: list[int] = []
        self.kept: list[mx.array] = []  # or an id might come to be another's

    def __call__(self, inputs: list[mx.array], *_: Any) -> list[mx.array]:
        numbers, host = inputs
        self.arrays.append(id(host))
        self.kept.append(host)
        if self.writes:
            there = np.array(host, copy=False)
            there[: numbers.size] = np.array(numbers).view(np.int32)
        return [mx.zeros((4,), mx.int32)]


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    sender = Sender()
    monkeypatch.setattr(sent, "_kernel", lambda _dtype: sender)
    monkeypatch.setattr(readback.device, "is_default", lambda: True)
    sent.arrives.cache_clear()
    yield sender
    sent.arrives.cache_clear()


def test_numbers_are_read_where_the_device_wrote_them(sender) -> None:
    large = (1 << 32) - 2
    for numbers in (mx.array([3, large, 5], mx.uint32), mx.array([[1, -2], [3, 4]], mx.int32)):
        read = Readback(numbers)
        assert read.array is not numbers
        assert read.read() == numbers.tolist()
    assert len(sender.arrays) == 3  # and what was tried out


def test_memory_is_written_again_only_when_nobody_can_read_it_any_more(sender) -> None:
    first, second = (Readback(mx.array([number], mx.int32)) for number in (1, 2))
    assert first.read() == [1]
    assert second.read() == [2]
    *_, one, two = sender.arrays
    assert one != two
    del first
    third = Readback(mx.array([3], mx.int32))
    assert sender.arrays[-1] == one
    assert second.read() == [2]
    assert third.read() == [3]


def test_no_thread_takes_memory_that_another_threads_launches_may_still_write_to(sender) -> None:
    """Nor does one that comes later and is given the same number."""

    def read() -> None:
        Readback(mx.array([1], mx.int32)).read()

    for _ in range(8):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert len({*sender.arrays[-8:]}) == 8


def test_a_device_that_writes_nothing_there_is_read_as_others_are(sender, caplog) -> None:
    sender.writes = False
    numbers = mx.array([3, 4], mx.int32)
    read = Readback(numbers)
    assert read.array is numbers
    assert read.read() == [3, 4]
    assert "does not write" in caplog.text


def test_nothing_is_read_as_nothing(sender) -> None:
    assert Readback(mx.zeros((0,), mx.uint32)).read() == []
    assert not sender.arrays
