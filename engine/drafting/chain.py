"""Drafts of rows that draft together, each after the one before, on the device until read."""

import mlx.core as mx


class Chain:
    """What has been drafted so far. Rows that draft less are the last ones and drop out."""

    def __init__(self) -> None:
        self._steps: list[mx.array] = []
        self._read: list[list[int]] = []  # steps that are on the host by now

    def __len__(self) -> int:
        """Number of drafts of those that have the most."""
        return len(self._steps)

    @property
    def steps(self) -> list[mx.array]:
        """The first drafts of all rows, the second of those that have two, and so on."""
        return self._steps

    def add(self, tokens: mx.array) -> None:
        """Take in the next draft of the first rows, token ids [rows]."""
        self._steps.append(tokens)

    def of(self, row: int) -> tuple[int, ...]:
        """Return the drafts of one row. Evaluates."""
        return tuple(step[row] for step in self._on_host() if row < len(step))

    def all(self) -> list[tuple[int, ...]]:
        """Return the drafts of all rows. Evaluates."""
        count = len(self._on_host()[0]) if self._steps else 0
        return [self.of(row) for row in range(count)]

    def _on_host(self) -> list[list[int]]:
        if len(self._read) < len(self._steps):
            missing = self._steps[len(self._read) :]
            mx.eval(missing)
            self._read += [step.tolist() for step in missing]  # type: ignore[misc]  # of ids [rows]
        return self._read
