"""The attention kernel over pages against attention in float64, and what it promises bitwise."""

import mlx.core as mx
import numpy as np
import pytest
from paged_window import PagedRows, as_float64, difference, windows_of

from engine.cuda import page_writes

pytestmark = pytest.mark.gpu

SHAPES = [(4, 2, 64), (32, 8, 128), (16, 4, 256), (8, 8, 96), (12, 2, 32)]  # heads, kv heads, dim
STARTS = (0, 5, 250, 256, 300, 1023)
LIMITS = {mx.float32: 2e-6, mx.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_of_any_width_attend_as_in_float64(shape, dtype) -> None:
    worst = 0.0
    for width in (1, 4, 9):
        rows_of = PagedRows(*shape, dtype, seed=width)
        rows = [
            rows_of.row(start, max(1, width - number % 2)) for number, start in enumerate(STARTS)
        ]
        inputs = rows_of.inputs(len(rows), width)
        before = [np.array(a.astype(mx.float32)) for a in rows_of.pages.arrays]
        out = as_float64(rows_of.attend(rows, inputs))
        written = 0
        for number, row in enumerate(rows):
            length = len(row.tokens)
            queries, keys, values = (as_float64(a)[number, :, :length] for a in inputs)
            held = rows_of.history(row)
            assert np.array_equal(held[0][:, row.start :], keys)
            assert np.array_equal(held[1][:, row.start :], values)
            worst = max(worst, difference(out[number, :, :length], rows_of.reference(row, queries)))
            assert not out[number, :, length:].any()
            written += length * shape[1]
        after = [np.array(a.astype(mx.float32)) for a in rows_of.pages.arrays]
        assert [int((a != b).any(-1).sum()) for a, b in zip(before, after, strict=True)] == [
            written,
            written,
        ]
    print(f"heads {shape}, {dtype}: {worst:.1e}")
    assert worst < LIMITS[dtype]


@pytest.mark.parametrize(("window_size", "first"), [(20, 0), (300, 0), (None, 1), (40, 1)])
def test_sliding_windows_and_an_empty_first_position_are_masked(window_size, first) -> None:
    rows_of = PagedRows(4, 2, 64, mx.float32)
    rows = [rows_of.row(start, 4) for start in (0, 1, 18, 290, 700)]
    inputs = rows_of.inputs(len(rows), 4)
    out = as_float64(rows_of.attend(rows, inputs, window_size, first))
    for number, row in enumerate(rows):
        expected = rows_of.reference(row, as_float64(inputs[0])[number], window_size, first)
        assert difference(out[number], expected) < 2e-6, row.start


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_query_comes_out_bitwise_whatever_shares_its_batch_and_window(shape, dtype) -> None:
    rows_of = PagedRows(*shape, dtype)
    width = 7
    rows = [rows_of.row(start, width) for start in (3, 250, 508, 1020)]
    inputs = rows_of.inputs(len(rows), width)
    together = np.array(rows_of.attend(rows, inputs).astype(mx.float32))
    for number, row in enumerate(rows):
        for t in range(width):
            alone = type(row)(row.seq_id, (1,), row.start + t, row.blocks)
            one = tuple(a[number : number + 1, :, t : t + 1] for a in inputs)
            out = np.array(rows_of.attend([alone], one).astype(mx.float32))
            assert np.array_equal(out[0, :, 0], together[number, :, t]), (row.start, t)


def test_a_read_that_depends_on_the_write_never_sees_older_pages() -> None:
    rows_of = PagedRows(4, 2, 64, mx.float32)
    row = rows_of.row(600, 4)
    window = windows_of([row])
    heads = np.arange(2)[:, None] * rows_of.pages.num_blocks + np.array(row.blocks)
    numbers = mx.array(heads[None])
    stale = 0
    for attempt in range(200):
        _, keys, values = rows_of.inputs(1, 4)
        if attempt % 2:  # by dependency, within one evaluation
            written = page_writes.write(rows_of.pages, window, keys, values)
            held, _ = rows_of.pages.gather(numbers + written)
        else:  # by order, in the next evaluation
            mx.async_eval(page_writes.write(rows_of.pages, window, keys, values))
            held, _ = rows_of.pages.gather(numbers)
        mx.eval(held)
        stale += not mx.array_equal(held[:, :, 600:604], keys).item()
    assert stale == 0


def test_windows_launched_one_after_the_other_see_each_other_in_order() -> None:
    rows_of = PagedRows(8, 2, 128, mx.bfloat16)
    row = rows_of.row(1000, 40)
    outs = []
    made = [rows_of.inputs(1, 1) for _ in range(40)]
    for t, inputs in enumerate(made):  # nothing is waited for in between
        step = type(row)(row.seq_id, (1,), row.start + t, row.blocks)
        outs.append(rows_of.attend([step], inputs))
        mx.async_eval(outs[-1])
    for t, (inputs, out) in enumerate(zip(made, outs, strict=True)):
        step = type(row)(row.seq_id, (1,), row.start + t, row.blocks)
        expected = rows_of.reference(step, as_float64(inputs[0])[0])
        assert difference(as_float64(out)[0], expected) < 4e-3, t


def test_copies_of_pieces_change_their_targets_alone() -> None:
    pool = mx.random.normal((12, 5, 7))
    mx.eval(pool)
    expected = np.array(pool)
    expected[[4, 11]] = expected[[2, 0]]
    mx.eval(page_writes.copy_pieces(pool, 35, [2, 0], [4, 11]))
    assert np.array_equal(np.array(pool), expected)
