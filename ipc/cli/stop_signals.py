"""SIGINT and SIGTERM while a job runs: the first asks it to stop, the second acts at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` with the first signal's number; the usual handlers are back afterwards."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        stop(number)

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    for number in usual:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
