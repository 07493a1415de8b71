"""Attention straight from a projection against MLX's operations, and what it promises bitwise."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from paged_window import PagedRows, as_float64, difference, windows_of

from engine.cuda import paged_attention
from engine.cuda.paged_attention import HeadPreparation, Projection
from scheduler.round import Row

pytestmark = pytest.mark.gpu

LIMITS = {mx.float32: 4e-6, mx.bfloat16: 6e-3}
STARTS = (0, 5, 120, 250, 256, 300, 1023)


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: int  # numbers of a head that are turned
    has_norm: bool
    gated: bool


SHAPES = [
    Shape(32, 8, 128, 128, True, False),
    Shape(16, 4, 256, 64, True, True),
    Shape(4, 4, 64, 32, False, False),
    Shape(16, 2, 64, 0, True, False),
    Shape(8, 8, 96, 96, False, True),
]


class Projected:
    """Rows over pages, and a projection of their windows with room between the kinds of heads."""

    def __init__(self, shape: Shape, dtype: mx.Dtype, seed: int = 0) -> None:
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.shape = shape
        self.dtype = dtype
        self.rows_of = PagedRows(heads, kv_heads, dim, dtype, seed=seed)
        stride = dim * (1 + shape.gated)
        key_offset = 8 + heads * stride
        value_offset = 16 + key_offset + kv_heads * dim
        self.columns = value_offset + kv_heads * dim + 8
        self.projection = Projection(
            heads, kv_heads, dim, stride, 8, key_offset, value_offset, shape.gated
        )
        random = self.rows_of.random
        norms = [
            mx.array(random.uniform(0.5, 1.5, dim).astype(np.float32)).astype(dtype)
            if shape.has_norm
            else None
            for _ in range(2)
        ]
        self.frequencies = None
        if shape.rotary:  # powers of two: MLX takes their inverses
            exponents = np.arange(shape.rotary // 2) * 12 // (shape.rotary // 2)
            self.frequencies = mx.array((2.0**-exponents).astype(np.float32))
        self.preparation = HeadPreparation(
            norms[0], norms[1], mx.array([1e-6], mx.float32), self.frequencies
        )

    def window(self, num_rows: int, width: int) -> mx.array:
        made = self.rows_of.random.standard_normal((num_rows, width, self.columns))
        out = mx.array(made.astype(np.float32)).astype(self.dtype)
        mx.eval(out)
        return out

    def attend(
        self, rows: list[Row], projected: mx.array, window_size: int | None = None, first: int = 0
    ) -> mx.array:
        out = paged_attention.attend_projected(
            self.rows_of.pages,
            windows_of(rows),
            projected,
            self.projection,
            self.preparation,
            counters=mx.zeros((4096,), mx.int32),
            constants=paged_attention.constants_of(
                self.preparation, **self.rows_of.constants(window_size, first)
            ),
        )
        mx.eval(out)
        return out

    def prepared(
        self, projected: mx.array, starts: list[int], first: int = 0
    ) -> tuple[mx.array, mx.array, mx.array, mx.array | None]:
        """Queries, keys, values, (rows, heads, width, dim), and the gate, by MLX's operations."""
        num_rows, width, _ = projected.shape
        p, dim = self.projection, self.shape.head_dim
        heads = projected[..., p.query_offset : p.query_offset + p.num_heads * p.query_stride]
        heads = heads.reshape(num_rows, width, p.num_heads, -1)
        gate = heads[..., dim:] if p.gated else None
        queries = heads[..., :dim]
        keys, values = (
            projected[..., at : at + p.num_kv_heads * dim].reshape(num_rows, width, -1, dim)
            for at in (p.key_offset, p.value_offset)
        )
        norms = (self.preparation.q_norm, self.preparation.k_norm)
        queries, keys = (
            x if norm is None else mx.fast.rms_norm(x, norm, 1e-6)
            for x, norm in zip((queries, keys), norms, strict=True)
        )
        queries, keys, values = (x.transpose(0, 2, 1, 3) for x in (queries, keys, values))
        if self.frequencies is not None:
            queries, keys = (
                mx.fast.rope(
                    x,
                    self.shape.rotary,
                    traditional=False,
                    base=None,
                    scale=1.0,
                    offset=mx.array(starts, mx.int32) - first,
                    freqs=1 / self.frequencies,
                )
                for x in (queries, keys)
            )
        return queries, keys, values, gate

    def check(
        self,
        rows: list[Row],
        projected: mx.array,
        window_size: int | None = None,
        first: int = 0,
    ) -> float:
        """Return the largest relative difference of a row's output, having compared its pages."""
        out = as_float64(self.attend(rows, projected, window_size, first))
        width = projected.shape[1]
        out = out.reshape(len(rows), width, self.shape.num_heads, -1)
        starts = [row.start for row in rows]
        queries, keys, values, gate = self.prepared(projected, starts, first)
        worst = 0.0
        for number, row in enumerate(rows):
            length = len(row.tokens)
            held_keys, held_values = self.rows_of.history(row)
            assert np.array_equal(
                held_values[:, row.start :], as_float64(values)[number, :, :length]
            )
            expected_keys = as_float64(keys)[number, :, :length]
            assert difference(held_keys[:, row.start :], expected_keys) < LIMITS[self.dtype]
            expected = self.rows_of.reference(
                row, as_float64(queries)[number, :, :length], window_size, first
            ).transpose(1, 0, 2)
            if gate is not None:
                expected = expected / (1 + np.exp(-as_float64(gate)[number, :length]))
            worst = max(worst, difference(out[number, :length], expected))
            assert not out[number, length:].any()
        return worst


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_of_any_width_come_out_as_by_operations(shape, dtype) -> None:
    worst = 0.0
    for width in (1, 2, 4, 8, 9, 16):
        case = Projected(shape, dtype, seed=width)
        rows = [
            case.rows_of.row(start, max(1, width - number % 3))
            for number, start in enumerate(STARTS)
        ]
        worst = max(worst, case.check(rows, case.window(len(rows), width)))
    print(f"{shape}, {dtype}: {worst:.1e}")
    assert worst < LIMITS[dtype]


@pytest.mark.parametrize(
    ("window_size", "first"), [(20, 0), (300, 0), (None, 1), (40, 1), (None, -90_000)]
)
def test_limits_and_shifted_positions_are_kept(window_size, first) -> None:
    case = Projected(SHAPES[0], mx.float32)
    rows = [case.rows_of.row(start, 4) for start in (max(0, first), 2, 18, 290, 700)]
    assert case.check(rows, case.window(len(rows), 4), window_size, first) < 4e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_token_comes_out_bitwise_whatever_shares_its_batch_and_window(shape, dtype) -> None:
    case = Projected(shape, dtype)
    width = 7
    rows = [case.rows_of.row(start, width) for start in (3, 250, 508, 1020)]
    projected = case.window(len(rows), width)
    together = np.array(case.attend(rows, projected).astype(mx.float32))
    for number, row in enumerate(rows):
        for t in range(width):
            alone = Row(row.seq_id, (1,), row.start + t, row.blocks)
            out = case.attend([alone], projected[number : number + 1, t : t + 1])
            assert np.array_equal(np.array(out.astype(mx.float32))[0, 0], together[number, t]), (
                row.start,
                t,
            )
