"""What a request wants to know of its prompt: log-probabilities of its tokens, or a pooled vector.

A reader is shown the hidden states of every prompt chunk as it is computed, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .answer import TokenLogprob
from .logprobs import Logprobs

Head = Callable[[mx.array], mx.array]  # hidden states (positions, size) -> logits
Pooling = Literal["mean", "last"]

POSITIONS_AT_ONCE = 64  # of logits in memory: 151,936 ids of float32 make 37 MiB


class PromptReader(ABC):
    """Reads the hidden states of one prompt."""

    @abstractmethod
    def read(self, start: int, hidden: mx.array, head: Head) -> None:
        """Take in positions start .. start + len(hidden) - 1, (positions, size)."""


class PromptLogprobs(PromptReader):
    """Raw log-probabilities of the prompt's tokens from position ``first`` on.

    The token at position p is judged by the output at p - 1; the first token of all has none.
    """

    def __init__(self, prompt: Sequence[int], num_top: int, first: int = 1) -> None:
        self._prompt = prompt
        self._num_top = num_top
        self._first = max(first, 1)
        self.entries: list[TokenLogprob | None] = [None] * len(prompt)

    def read(self, start: int, hidden: mx.array, head: Head) -> None:
        """See PromptReader. What was read before, by a round that failed, is read again."""
        end = min(start + hidden.shape[0], len(self._prompt) - 1)
        for low in range(max(start, self._first - 1), end, POSITIONS_AT_ONCE):
            high = min(low + POSITIONS_AT_ONCE, end)
            tokens = mx.array(list(self._prompt[low + 1 : high + 1]))
            logits = head(hidden[low - start : high - start])
            found = Logprobs(logits, tokens, [self._num_top] * (high - low))
            mx.eval(found.arrays)
            self.entries[low + 1 : high + 1] = found.read()


class PromptVector(PromptReader):
    """The mean, or the last, of the prompt's hidden states after the final norm."""

    def __init__(self, length: int, pooling: Pooling) -> None:
        self._length = length
        self._pooling = pooling
        self._parts: dict[int, npt.NDArray[np.float32]] = {}  # sums of chunks by their start

    def read(self, start: int, hidden: mx.array, head: Head) -> None:
        """See PromptReader. A prompt that begins anew may come in other chunks than before."""
        self._parts = {at: part for at, part in self._parts.items() if at < start}
        inside = hidden[: self._length - start].astype(mx.float32)
        if self._pooling == "mean":
            self._parts[start] = np.array(inside.sum(axis=0))
        elif start + inside.shape[0] == self._length:
            self._parts = {start: np.array(inside[-1])}

    def vector(self) -> npt.NDArray[np.float32]:
        """Return the vector, (size,), once the whole prompt has been read."""
        total: npt.NDArray[np.float32] = np.sum(list(self._parts.values()), axis=0)
        return total / np.float32(self._length) if self._pooling == "mean" else total
