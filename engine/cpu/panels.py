"""A copy of a weight in the order in which OpenBLAS's kernels for small products read it.

    weight (outputs, inputs)  ->  panels (outputs / PANEL, inputs, PANEL)

Each panel is one contiguous piece, and a product with few rows of x is below SMALL: nothing is
packed and the memory is read straight through. More rows are cut, and go through each panel one
cut after the other while it lies in the processor's cache.
"""

from dataclasses import dataclass
from functools import cache

import mlx.core as mx

SMALL = 1_000_000  # multiplications of the largest product that OpenBLAS does without packing
PANEL = 32  # outputs: two of its registers
LEAST_ROWS = 8  # of x that have to go through a panel at once
MOST_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Some panels of a weight, (panels, inputs, PANEL)."""

    values: mx.array

    @classmethod
    def of(cls, weight: mx.array) -> "Panels | None":
        """Copy ``weight``; None if it is too small, does not divide, or is not float32.

        The copy is made when it is first evaluated.
        """
        outputs, inputs = weight.shape
        is_small = weight.size * LEAST_ROWS <= SMALL
        fits = outputs % PANEL == 0 and inputs * PANEL * LEAST_ROWS <= SMALL
        if is_small or not fits or weight.dtype != mx.float32:
            return None
        return cls(mx.contiguous(weight.reshape(-1, PANEL, inputs).swapaxes(1, 2)))

    @property
    def count(self) -> int:
        """How many panels there are."""
        return self.values.shape[0]

    def part(self, first: int, end: int) -> "Panels":
        """The panels from ``first`` to ``end``: a view."""
        values = self.values[first:end]
        mx.eval(values)
        return Panels(values)

    def times(self, x: mx.array, stream: mx.Stream) -> mx.array:
        """x (rows, inputs) by each panel: (panels, rows, PANEL)."""
        rows, inputs = x.shape
        cuts, each = cut_rows(rows, inputs)
        if cuts == 1:
            only: mx.array = mx.matmul(x, self.values, stream=stream)
            return only
        with mx.stream(stream):
            if cuts * each > rows:
                x = mx.pad(x, [(0, cuts * each - rows), (0, 0)])
            product = x.reshape(1, cuts, each, inputs) @ self.values[:, None]
            product = product.reshape(self.count, cuts * each, PANEL)
            return product[:, :rows] if cuts * each > rows else product


@cache
def cut_rows(rows: int, inputs: int) -> tuple[int, int]:
    """How many cuts, of how many rows each, go through panels of so many inputs."""
    most = SMALL // (inputs * PANEL)
    cuts = -(-rows // most)
    return cuts, -(-rows // cuts)
