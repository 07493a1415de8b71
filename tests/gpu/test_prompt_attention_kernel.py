"""Attention of long windows over pages against attention in float64, and what it promises."""

import mlx.core as mx
import numpy as np
import pytest
from paged_window import Inputs, PagedRows, as_float64, difference, windows_of

from engine.cuda import page_writes
from engine.cuda.prompt_attention import attend_prompt
from scheduler.round import Row

pytestmark = pytest.mark.gpu

SHAPES = [(4, 2, 64), (32, 8, 128), (16, 4, 256), (8, 8, 192), (6, 2, 128)]  # heads, kv heads, dim
LIMIT = 4e-3


def attend(
    rows_of: PagedRows,
    rows: list[Row],
    inputs: Inputs,
    window_size: int | None = None,
    first: int = 0,
) -> mx.array:
    """Write the rows' windows and attend, as a layer does."""
    window = windows_of(rows)
    queries, keys, values = inputs
    written = page_writes.write(rows_of.pages, window, keys, values)
    constants = rows_of.constants(window_size, first)
    return attend_prompt(rows_of.pages, window, queries, written, **constants)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ragged_windows_attend_as_in_float64(shape) -> None:
    rows_of = PagedRows(*shape, mx.bfloat16)
    rows = [rows_of.row(*place) for place in ((0, 150), (5, 17), (250, 64), (1023, 133), (64, 1))]
    inputs = rows_of.inputs(len(rows), 150)
    out = as_float64(attend(rows_of, rows, inputs))
    worst = 0.0
    for number, row in enumerate(rows):
        length = len(row.tokens)
        expected = rows_of.reference(row, as_float64(inputs[0])[number, :, :length])
        worst = max(worst, difference(out[number, :, :length], expected))
        assert not out[number, :, length:].any()
    print(f"heads {shape}: {worst:.1e}")
    assert worst < LIMIT


@pytest.mark.parametrize(("window_size", "first"), [(20, 0), (300, 0), (None, 1), (40, 1)])
def test_sliding_windows_and_an_empty_first_position_are_masked(window_size, first) -> None:
    rows_of = PagedRows(4, 2, 64, mx.bfloat16)
    rows = [rows_of.row(start, 90) for start in (0, 1, 18, 290, 700)]
    inputs = rows_of.inputs(len(rows), 90)
    out = as_float64(attend(rows_of, rows, inputs, window_size, first))
    for number, row in enumerate(rows):
        expected = rows_of.reference(row, as_float64(inputs[0])[number], window_size, first)
        assert difference(out[number], expected) < LIMIT, row.start


def test_queries_may_lie_in_any_order() -> None:
    rows_of = PagedRows(8, 2, 128, mx.bfloat16)
    rows = [rows_of.row(40, 50)]
    queries, keys, values = rows_of.inputs(1, 50)
    orders = [queries, mx.contiguous(queries), mx.contiguous(queries.swapaxes(2, 3)).swapaxes(2, 3)]
    outs = [np.array(attend(rows_of, rows, (q, keys, values)).astype(mx.float32)) for q in orders]
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


@pytest.mark.parametrize("window_size", [None, 100])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_prompt_comes_out_bitwise_however_it_is_cut(shape, window_size) -> None:
    rows_of = PagedRows(*shape, mx.bfloat16)
    rows = [rows_of.row(start, 300) for start in (0, 77)]
    inputs = rows_of.inputs(2, 300)
    whole = np.array(attend(rows_of, rows, inputs, window_size).astype(mx.float32))
    for number, row in enumerate(rows):
        for begin, end in ((0, 37), (37, 101), (101, 102), (102, 300)):
            part = Row(row.seq_id, (1,) * (end - begin), row.start + begin, row.blocks)
            cut = tuple(a[number : number + 1, :, begin:end] for a in inputs)
            out = np.array(attend(rows_of, [part], cut, window_size).astype(mx.float32))
            assert np.array_equal(out[0], whole[number, :, begin:end]), (row.start, begin)
