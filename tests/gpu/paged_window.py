"""Random windows over random pages, and attention over them in float64 as the reference."""

import mlx.core as mx
import numpy as np

from engine.batch import Batch, Window
from engine.cuda import paged_attention
from engine.cuda.attention_layer import UNLIMITED
from engine.cuda.window import WindowArrays
from engine.pages import Pages, PageShape
from scheduler.round import Row

BLOCK_SIZE = 16
NUM_BLOCKS = 300

Inputs = tuple[mx.array, mx.array, mx.array]  # queries, keys, values: (rows, heads, width, dim)


def rounded(array: np.ndarray, dtype: mx.Dtype) -> mx.array:
    return mx.array(array.astype(np.float32)).astype(dtype)


def as_float64(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def difference(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def windows_of(rows: list[Row]) -> WindowArrays:
    """Those of ``rows`` in their order."""
    return WindowArrays.of(Batch([Window(row) for row in rows], BLOCK_SIZE, keep_order=True))


class PagedRows:
    """Rows of one attention layer: pages full of random numbers, tables scattered over them."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: mx.Dtype, *, seed: int = 0
    ) -> None:
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.pages = Pages(
            PageShape(num_kv_heads, head_dim, head_dim, dtype), NUM_BLOCKS, BLOCK_SIZE
        )
        self.pages.keys = self._normal(self.pages.keys.shape)
        self.pages.values = self._normal(self.pages.values.shape)
        mx.eval(self.pages.arrays)
        self.free = list(1 + self.random.permutation(NUM_BLOCKS - 1))

    def _normal(self, shape: tuple[int, ...]) -> mx.array:
        return rounded(self.random.standard_normal(shape), self.dtype)

    def row(self, start: int, length: int) -> Row:
        """A row of its own blocks."""
        used = -(-(start + length) // BLOCK_SIZE)
        blocks = tuple(int(self.free.pop()) for _ in range(used))
        return Row(len(self.free), (1,) * length, start, blocks)

    def inputs(self, num_rows: int, width: int) -> Inputs:
        """Queries, keys, values as modules give them, transposed to (rows, heads, width, dim)."""
        heads = (self.num_heads, *2 * [self.pages.shape.num_kv_heads])
        made = [self._normal((num_rows, width, count, self.head_dim)) for count in heads]
        mx.eval(made)
        queries, keys, values = (array.transpose(0, 2, 1, 3) for array in made)
        return queries, keys, values

    def constants(self, window_size: int | None = None, first: int = 0) -> dict[str, mx.array]:
        """What attention is told beside its inputs."""
        return {
            "limits": mx.array([window_size or UNLIMITED, first], mx.int32),
            "scale": mx.array([self.head_dim**-0.5], mx.float32),
        }

    def attend(
        self,
        rows: list[Row],
        inputs: Inputs,
        window_size: int | None = None,
        first: int = 0,
    ) -> mx.array:
        """Run the kernel over ``rows``, in their order."""
        queries, keys, values = inputs
        return paged_attention.attend(
            self.pages,
            windows_of(rows),
            queries=queries,
            keys=keys,
            values=values,
            counters=mx.zeros((4096,), mx.int32),
            **self.constants(window_size, first),
        )

    def history(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """K and V that the pages hold of ``row``, (kv heads, positions, dim)."""
        heads = self.pages.shape.num_kv_heads
        numbers = np.arange(heads)[:, None] * NUM_BLOCKS + np.array(row.blocks)
        gathered = self.pages.gather(mx.array(numbers[None]))
        keys, values = (as_float64(array[0]) for array in gathered)
        return keys[:, : row.start + len(row.tokens)], values[:, : row.start + len(row.tokens)]

    def reference(
        self, row: Row, queries: np.ndarray, window_size: int | None = None, first: int = 0
    ) -> np.ndarray:
        """Attention of ``queries``, (heads, length, dim), over what the pages hold of ``row``."""
        keys, values = self.history(row)
        group = self.num_heads // self.pages.shape.num_kv_heads
        keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
        scores = queries @ keys.transpose(0, 2, 1) * self.head_dim**-0.5
        at = row.start + np.arange(queries.shape[1])[:, None]
        position = np.arange(keys.shape[1])
        seen = position <= at
        if window_size is not None:
            seen &= position > at - window_size
        seen &= (position >= first) | (at < first)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out: np.ndarray = weights / weights.sum(-1, keepdims=True) @ values
        return out
