"""A prefix that rows share, read once for all: bitwise what each row gets on its own."""

import mlx.core as mx
import numpy as np
import pytest
from paged_window import BLOCK_SIZE, PagedRows, as_float64

from engine.batch import Batch, Window
from engine.cuda import paged_attention, shared_prefix
from engine.cuda.attention_layer import UNLIMITED
from engine.cuda.shared_prefix import SharedRows
from engine.cuda.window import WindowArrays
from scheduler.round import PrefixGroup, Row

pytestmark = pytest.mark.gpu

SHAPES = [(32, 8, 128), (16, 4, 256), (4, 2, 64), (6, 2, 128)]  # heads, kv heads, dim


class Grouped(PagedRows):
    """Rows of which some share their first blocks."""

    def group(self, num_blocks: int, places: list[tuple[int, int]]) -> list[Row]:
        """Rows, (start, length), that share ``num_blocks``."""
        prefix = tuple(int(self.free.pop()) for _ in range(num_blocks))
        rows = []
        for start, length in places:
            used = -(-(start + length) // BLOCK_SIZE) - num_blocks
            own = tuple(int(self.free.pop()) for _ in range(used))
            rows.append(Row(len(self.free), (1,) * length, start, prefix + own))
        return rows

    def run(
        self,
        batch: Batch,
        inputs: tuple[mx.array, mx.array, mx.array],
        *,
        once: bool,
        first: int = 0,
    ) -> np.ndarray:
        """Attention of ``batch``; what is shared is read ``once`` or by each row."""
        window = WindowArrays.of(batch)
        queries, keys, values = inputs
        limits = mx.array([UNLIMITED, first], mx.int32)
        scale = mx.array([self.head_dim**-0.5], mx.float32)
        sums = None
        if once:
            shared = SharedRows.of(batch, self.pages.shape.num_kv_heads)
            assert shared is not None
            sums = shared_prefix.attend(
                self.pages, window, shared, queries, limits=limits, scale=scale
            )
        out = paged_attention.attend(
            self.pages,
            window,
            queries=queries,
            keys=keys,
            values=values,
            counters=mx.zeros((4096,), mx.int32),
            limits=limits,
            scale=scale,
            shared=sums,
        )
        return np.array(out.astype(mx.float32))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("width", [1, 4, 9])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reading_a_prefix_once_changes_no_bit(shape, width, first) -> None:
    rows_of = Grouped(*shape, mx.bfloat16)
    together = rows_of.group(64, [(64 * 16 + more, max(1, width - more % 2)) for more in range(9)])
    alone = [rows_of.row(start, width) for start in (3, 500)]
    group = PrefixGroup(tuple(row.seq_id for row in together), 64)
    batch = Batch([Window(row) for row in alone[:1] + together + alone[1:]], BLOCK_SIZE, (group,))
    inputs = rows_of.inputs(batch.size, width)
    apart = rows_of.run(batch, inputs, once=False, first=first)
    assert np.array_equal(rows_of.run(batch, inputs, once=True, first=first), apart)
    for number, window in enumerate(batch.windows):
        length = window.length
        expected = rows_of.reference(
            window.row, as_float64(inputs[0])[number, :, :length], None, first
        )
        error = np.linalg.norm(apart[number, :, :length] - expected) / np.linalg.norm(expected)
        assert error < 4e-3


def test_several_groups_are_read_in_one_launch() -> None:
    rows_of = Grouped(32, 8, 128, mx.bfloat16)
    made = [
        rows_of.group(num_blocks, [(num_blocks * 16 + more, 2) for more in range(count)])
        for num_blocks, count in ((33, 5), (48, 4), (17, 9))
    ]
    groups = tuple(
        PrefixGroup(tuple(row.seq_id for row in rows), len(rows[0].blocks) - 1) for rows in made
    )
    batch = Batch([Window(row) for rows in made for row in rows], BLOCK_SIZE, groups)
    inputs = rows_of.inputs(batch.size, 2)
    shared = SharedRows.of(batch, 8)
    assert shared is not None
    assert shared.num_splits == 3
    assert np.array_equal(
        rows_of.run(batch, inputs, once=True), rows_of.run(batch, inputs, once=False)
    )
