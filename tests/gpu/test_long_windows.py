"""What lies between the products of many rows, against MLX's operations."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from paged_window import as_float64, difference, windows_of
from test_projected_attention import LIMITS, SHAPES, Projected

from engine.cuda import long_windows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_are_normed_turned_and_written_as_by_operations(shape, dtype) -> None:
    case = Projected(shape, dtype)
    rows = [case.rows_of.row(start, length) for start, length in ((0, 37), (250, 40), (1023, 19))]
    projected = case.window(len(rows), 40)
    at, dim = case.projection, shape.head_dim

    def heads(offset: int, count: int, stride: int) -> mx.array:
        part = projected[..., offset : offset + count * stride]
        return part.reshape(len(rows), 40, count, stride)[..., :dim]

    out, written = long_windows.prepare_heads(
        case.rows_of.pages,
        windows_of(rows),
        case.preparation,
        queries=heads(at.query_offset, at.num_heads, at.query_stride),
        keys=heads(at.key_offset, at.num_kv_heads, dim),
        values=heads(at.value_offset, at.num_kv_heads, dim),
        limits=case.rows_of.constants()["limits"],
    )
    mx.eval(out, written)
    queries, keys, values, _ = case.prepared(projected, [row.start for row in rows])
    for number, row in enumerate(rows):
        length = len(row.tokens)
        held_keys, held_values = case.rows_of.history(row)
        ours = as_float64(out)[number, :length]
        expected = as_float64(queries)[number, :, :length].transpose(1, 0, 2)
        assert difference(ours, expected) < LIMITS[dtype]
        expected = as_float64(keys)[number, :, :length]
        assert difference(held_keys[:, row.start :], expected) < LIMITS[dtype]
        expected = as_float64(values)[number, :, :length]
        assert np.array_equal(held_values[:, row.start :], expected)


def test_a_gated_activation_is_as_close_to_float64_as_its_type_allows() -> None:
    mx.random.seed(1)
    gate, up = (4 * mx.random.normal((3, 70, 40)).astype(mx.bfloat16) for _ in range(2))
    expected = as_float64(gate) / (1 + np.exp(-as_float64(gate))) * as_float64(up)
    assert difference(as_float64(long_windows.swiglu(gate, up)), expected) < 2e-3


def test_a_product_is_added_to_what_it_stands_beside() -> None:
    linear = nn.Linear(64, 48, bias=False)
    linear.set_dtype(mx.bfloat16)
    x, y = (mx.random.normal((2, 300, size)).astype(mx.bfloat16) for size in (48, 64))
    expected = as_float64(x) + as_float64(y) @ as_float64(linear.weight).T
    assert difference(as_float64(long_windows.add_product(x, y, linear)), expected) < 4e-3
