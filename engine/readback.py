"""Numbers that the host is going to read once the device has made them."""

from typing import Any

import mlx.core as mx

from .cuda import device
from .cuda.sent import Sent, arrives


class Readback:
    """``numbers``, which other operations may go on with before and after they are read.

    An NVIDIA GPU writes them to the host's memory: reading its own would move them out of it.
    """

    def __init__(self, numbers: mx.array) -> None:
        """``numbers``: int32 or uint32, of any shape."""
        self.numbers = numbers
        self._sent: Sent | None = None
        if numbers.size and device.is_default() and arrives():
            self._sent = Sent(numbers)

    @property
    def array(self) -> mx.array:
        """What to evaluate before ``read``."""
        return self.numbers if self._sent is None else self._sent.done

    def read(self) -> list[Any]:
        """Return the numbers as (nested) lists. Evaluates."""
        if self._sent is not None:
            mx.eval(self._sent.done)
            return self._sent.read()
        found: list[Any] = self.numbers.tolist()  # type: ignore[assignment]  # never of 0 dimensions
        return found
