"""Steps of one length, and how old what was stamped in them is when it arrives."""

import time
from collections.abc import Callable, Iterable


class Beat:
    """Waits for the next step; who was held up does not hurry afterwards."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.due = 0.0

    def wait(self) -> None:
        """Return when it is due."""
        self.due = max(self.due + self.step_seconds, time.monotonic())
        time.sleep(max(self.due - time.monotonic(), 0))


def ages_of(stamps: Callable[[], Iterable[bytes]], seconds: float) -> list[float]:
    """Return how old what arrives for ``seconds`` from the first message on is, in milliseconds.

    ``stamps`` waits a little for messages, and says of each as it is read when it was made.
    """
    ages: list[float] = []
    until = float("inf")
    while time.monotonic() < until:
        ages += [(time.monotonic_ns() - int(stamp)) / 1e6 for stamp in stamps()]
        if ages and until == float("inf"):
            until = time.monotonic() + seconds
    return ages
