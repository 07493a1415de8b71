"""A prefix that rows share, read once for all: as near to float64 as what each row reads."""

import mlx.core as mx
import numpy as np
import pytest
from paged_window import BLOCK_SIZE, Inputs, PagedRows, as_float64, difference
from test_projected_attention import SHAPES as PROJECTED
from test_projected_attention import Projected, Shape

from engine.batch import Batch, Window
from engine.cuda import paged_attention, shared_prefix
from engine.cuda.paged_attention import SharedSums
from engine.cuda.shared_rows import SharedRows
from engine.cuda.window import WindowArrays
from scheduler.round import PrefixGroup, Row

pytestmark = pytest.mark.gpu

SHAPES = [(32, 8, 128), (16, 4, 256), (4, 2, 64), (6, 2, 128)]  # heads, kv heads, dim


def group(rows_of: PagedRows, num_blocks: int, places: list[tuple[int, int]]) -> list[Row]:
    """Rows, (start, length), that share their first ``num_blocks``."""
    prefix = tuple(int(rows_of.free.pop()) for _ in range(num_blocks))
    rows = []
    for start, length in places:
        used = -(-(start + length) // BLOCK_SIZE) - num_blocks
        own = tuple(int(rows_of.free.pop()) for _ in range(used))
        rows.append(Row(len(rows_of.free), (1,) * length, start, prefix + own))
    return rows


def batch_of(groups: list[list[Row]], others: list[Row], num_blocks: list[int]) -> Batch:
    named = tuple(
        PrefixGroup(tuple(row.seq_id for row in rows), shared)
        for rows, shared in zip(groups, num_blocks, strict=True)
    )
    rows = [*others[:1], *(row for rows in groups for row in rows), *others[1:]]
    return Batch([Window(row) for row in rows], BLOCK_SIZE, named)


def attend(
    rows_of: PagedRows, batch: Batch, inputs: Inputs, *, once: bool, first: int = 0
) -> np.ndarray:
    """Attention of ``batch``; what is shared is read ``once`` or by each row."""
    window = WindowArrays.of(batch)
    queries, keys, values = inputs
    constants = rows_of.constants(first=first)
    sums = None
    if once:
        shared = SharedRows.of(batch)
        assert shared is not None
        sums = shared_prefix.attend(rows_of.pages, window, shared, queries, **constants)
    out = paged_attention.attend(
        rows_of.pages,
        window,
        queries=queries,
        keys=keys,
        values=values,
        counters=mx.zeros((4096,), mx.int32),
        shared=sums,
        **constants,
    )
    return np.array(out.astype(mx.float32))


def check(rows_of: PagedRows, batch: Batch, inputs: Inputs, first: int = 0) -> None:
    """Compare with float64, row by row, and with what rows read on their own."""
    once, apart = (attend(rows_of, batch, inputs, once=how, first=first) for how in (True, False))
    for number, window in enumerate(batch.windows):
        queries = as_float64(inputs[0])[number, :, : window.length]
        expected = rows_of.reference(window.row, queries, None, first)
        for out in (once, apart):
            error = difference(out[number, :, : window.length], expected)
            assert error < 4e-3, (number, out is once)
        assert not once[number, :, window.length :].any()


@pytest.mark.parametrize(("width", "first"), [(1, 0), (4, 1), (9, 0)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prefix_read_once_weighs_what_it_weighs_for_each_row(shape, width, first) -> None:
    rows_of = PagedRows(*shape, mx.bfloat16)
    places = [(1024 + more, max(1, width - more % 2)) for more in range(9)]
    together = group(rows_of, 64, places)
    others = [rows_of.row(start, width) for start in (3, 500)]
    batch = batch_of([together], others, [64])
    check(rows_of, batch, rows_of.inputs(batch.size, width), first)


def test_many_rows_with_few_positions_of_their_own_fill_several_tiles() -> None:
    rows_of = PagedRows(32, 8, 128, mx.bfloat16)
    together = group(rows_of, 80, [(1280 + more % 20, 1) for more in range(70)])
    batch = batch_of([together], [], [80])
    check(rows_of, batch, rows_of.inputs(batch.size, 1))


def test_several_groups_are_read_in_one_launch() -> None:
    rows_of = PagedRows(32, 8, 128, mx.bfloat16)
    num_blocks = [33, 48, 17]
    groups = [
        group(rows_of, shared, [(shared * 16 + more, 2) for more in range(count)])
        for shared, count in zip(num_blocks, (5, 4, 9), strict=True)
    ]
    batch = batch_of(groups, [], num_blocks)
    shared = SharedRows.of(batch)
    assert shared is not None
    assert shared.num_positions == 48 * BLOCK_SIZE
    check(rows_of, batch, rows_of.inputs(batch.size, 2))


class Sharing:
    """A projection of windows of groups of rows, and others', attended to in each way there is."""

    def __init__(
        self,
        shape: Shape,
        width: int,
        *,
        counts: list[int],
        num_blocks: list[int],
        own: list[int],
        step: int = 9,
    ) -> None:
        self.case = case = Projected(shape, mx.bfloat16)
        groups = [
            group(
                case.rows_of,
                shared,
                [(shared * 16 + step * more, max(1, width - more % 2)) for more in range(count)],
            )
            for count, shared in zip(counts, num_blocks, strict=True)
        ]
        batch = batch_of(groups, [case.rows_of.row(start, width) for start in own], num_blocks)
        shared = SharedRows.of(batch)
        assert shared is not None
        self.shared = shared
        self.window = WindowArrays.of(batch)
        self.projected = case.window(batch.size, width)
        self.counters = mx.zeros((4096,), mx.int32)
        self.constants = paged_attention.constants_of(case.preparation, **case.rows_of.constants())
        mx.eval(self.counters, self.constants)
        self.inputs = (
            *(case.rows_of.pages, self.window, self.projected),
            *(case.projection, case.preparation),
        )

    def apart(self, sums: SharedSums | None = None) -> mx.array:
        """Each row on its own, or beside what others have in common."""
        return paged_attention.attend_projected(
            *self.inputs,
            counters=self.counters,
            constants=self.constants,
            shared=sums,
        )

    def by_sums(self) -> mx.array:
        return self.apart(
            shared_prefix.attend_projected(
                self.case.rows_of.pages,
                self.window,
                self.shared,
                projected=self.projected,
                projection=self.case.projection,
                preparation=self.case.preparation,
                constants=self.constants,
            )
        )


@pytest.mark.parametrize(
    ("shape", "width", "counts", "num_blocks", "own"),
    [
        (PROJECTED[0], 1, [9], [64], [40]),
        (PROJECTED[0], 9, [9], [64], [40, 700]),
        (PROJECTED[0], 3, [5, 4, 9], [33, 48, 17], [3, 40]),
        (Shape(6, 2, 64, 32, True, True), 5, [9, 8], [33, 64], [600]),
        (PROJECTED[0], 1, [40, 5, 30], [20, 64, 33], [40]),
        (PROJECTED[0], 1, [2], [200], [300]),
        (Shape(6, 2, 64, 32, True, True), 1, [45], [192], []),
    ],
    ids=str,
)
def test_what_rows_share_is_added_to_what_they_do_not(
    shape, width, counts, num_blocks, own
) -> None:
    step = 9 if max(counts) < 10 else 1  # or there are not enough blocks
    rows = Sharing(shape, width, counts=counts, num_blocks=num_blocks, own=own, step=step)
    apart, by_sums = (as_float64(out) for out in (rows.apart(), rows.by_sums()))
    assert difference(by_sums, apart) < 6e-3
    assert not np.array(rows.counters).any()


@pytest.mark.parametrize("shape", PROJECTED[:2], ids=str)
def test_queries_out_of_a_projection_come_out_as_they_do_on_their_own(shape) -> None:
    rows = Sharing(shape, 3, counts=[9], num_blocks=[64], own=[40])
    apart, once = (as_float64(out) for out in (rows.apart(), rows.by_sums()))
    assert difference(once, apart) < 6e-3
