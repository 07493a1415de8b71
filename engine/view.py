"""A batch as the layers need it: device arrays and stops, made once and shared by all layers."""

from functools import cached_property
from typing import Any

import mlx.core as mx

from .attention.index import BatchIndex
from .batch import Batch
from .recurrence.rows import RecurrentRows


class BatchView:
    """A batch as the layers need it: device arrays and stops, made once for all layers."""

    def __init__(self, batch: Batch, tokens: mx.array | None = None) -> None:
        """``tokens``: ids (rows, width), where the batch itself does not know all of them."""
        self.batch = batch
        self._tokens = tokens
        self.index = BatchIndex(batch)
        self.rows = batch.rows
        self.slots = [row.slot or 0 for row in self.rows]
        self.shared: dict[Any, Any] = {}  # what one layer made of the batch for all of its kind
        # how many tokens of each window are committed: all, until drafts have been judged
        self.kept = [window.length for window in batch.windows]

    @property
    def tokens(self) -> mx.array:
        """Token ids, (rows, width)."""
        if self._tokens is None:
            self._tokens = self.batch.tokens()
        return self._tokens

    @cached_property
    def recurrent(self) -> RecurrentRows:
        """All rows for recurrent layers: made for those that ask, kernels need none of it."""
        return RecurrentRows(self.batch.windows, self.batch.width)

    def part(self, numbers: tuple[int, ...]) -> RecurrentRows:
        """Rows of these numbers, in this order, to run through recurrent layers by themselves."""
        if numbers == tuple(range(self.batch.size)):
            return self.recurrent
        key = (RecurrentRows, numbers)
        if key not in self.shared:
            windows = [self.batch.windows[number] for number in numbers]
            self.shared[key] = RecurrentRows(windows, self.batch.width)
        part: RecurrentRows = self.shared[key]
        return part
