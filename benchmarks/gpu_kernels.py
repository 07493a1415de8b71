"""How fast the CUDA kernels of attention and of the gated delta rule move their bytes."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import numpy as np
from mlx import nn

from engine.batch import Batch, Window
from engine.cuda import delta, delta_columns, delta_prompt, paged_attention, product
from engine.cuda.attention_layer import UNLIMITED
from engine.cuda.delta_columns import Projections
from engine.cuda.delta_layer import delta_rows
from engine.cuda.device import on_device
from engine.cuda.paged_attention import HeadPreparation, Projection
from engine.cuda.window import WindowArrays
from engine.pages import Pages, PageShape
from engine.slots import Slots
from engine.view import BatchView
from scheduler.round import Row

BLOCK_SIZE = 16
REPEATS = 50
HEADS = {  # query heads, K/V heads, their dimension, numbers that are turned, whether gated
    "dense-4b": (32, 8, 128, 128, False),
    "hybrid-4b": (16, 4, 256, 64, True),
}
PRODUCTS = {  # depth, columns of the weights side by side, what is around the product
    "dense-4b q, k, v": (2560, (4096, 1024, 1024), "norm"),
    "dense-4b o": (4096, (2560,), ""),
    "dense-4b gate, up": (2560, (9728, 9728), "swiglu"),
    "dense-4b down": (9728, (2560,), ""),
    "hybrid-4b qkv, z, b, a": (2560, (8192, 4096, 32, 32), "norm"),
    "4b vocabulary": (2560, (151936,), ""),
}


def microseconds(run: Callable[[], mx.array]) -> float:
    """Time of one of many launches in one evaluation; launching them takes the CPU about 7 us."""
    best = float("inf")
    for _ in range(4):
        outs = [run() for _ in range(REPEATS)]
        mx.synchronize()
        started = time.perf_counter()
        mx.eval(outs)
        mx.synchronize()
        best = min(best, time.perf_counter() - started)
    return best / REPEATS * 1e6


def make_rows(count: int, start: int, width: int) -> list[Row]:
    used = -(-(start + width) // BLOCK_SIZE)
    ids = 1 + np.random.default_rng(0).permutation(count * used).reshape(count, used)
    return [
        Row(number, (1,), start, tuple(int(i) for i in blocks), slot=1 + number)
        for number, blocks in enumerate(ids)
    ]


def make_windows(count: int, start: int, width: int) -> list[Window]:
    return [Window(row, (1,) * (width - 1)) for row in make_rows(count, start, width)]


def attention(shape: str, count: int, context: int, width: int) -> None:
    heads, kv_heads, dim, rotary, gated = HEADS[shape]
    windows = make_windows(count, context, width)
    num_blocks = 1 + count * len(windows[0].row.blocks)
    pages = Pages(PageShape(kv_heads, dim, dim, mx.bfloat16), num_blocks, BLOCK_SIZE)
    arrays = WindowArrays.of(Batch(windows, BLOCK_SIZE))
    stride = dim * (1 + gated)
    columns = (heads * stride, heads * stride + kv_heads * dim)
    projection = Projection(heads, kv_heads, dim, stride, 0, *columns, gated)
    projected = mx.random.normal((count, width, columns[1] + kv_heads * dim)).astype(mx.bfloat16)
    frequencies = 1e6 ** (-np.arange(0, rotary, 2) / rotary)
    norm = mx.ones((dim,), mx.bfloat16)
    preparation = HeadPreparation(
        norm,
        norm,
        on_device(mx.array([1e-6], mx.float32)),
        on_device(mx.array(frequencies.astype(np.float32))),
    )
    limits = on_device(mx.array([UNLIMITED, 0], mx.int32))
    scale = on_device(mx.array([dim**-0.5], mx.float32))
    constants = {
        "counters": mx.zeros((1 << 16,), mx.int32),
        "constants": paged_attention.constants_of(preparation, limits, scale),
    }
    mx.eval(pages.arrays, projected, constants)
    mx.eval(arrays.starts, arrays.lengths, arrays.tables)
    taken = microseconds(
        lambda: paged_attention.attend_projected(
            pages, arrays, projected, projection, preparation, **constants
        )
    )
    moved = 2 * count * (context + width) * kv_heads * dim * 2
    sizes = {"count": count, "context": context, "width": width}
    report("attention", shape, **sizes, taken=taken, moved=moved)


def gated_delta(count: int, width: int) -> None:
    shape = delta.DeltaShape(mx.bfloat16, 16, 32, 128, 128, 4, 8)
    slots = Slots(shape.layout(), count + 1)
    windows = make_windows(count, 96, width)
    rows = delta_rows(BatchView(Batch(windows, BLOCK_SIZE)))
    weights = {
        "convolution": mx.random.normal((8192, 4)),
        "decay_rates": mx.ones((32,)),
        "dt_bias": mx.ones((32,)),
        "norm": mx.ones((128,)),
        "epsilon": on_device(mx.array([1e-6], mx.float32)),
    }
    ab = mx.random.normal((count, width, 32)).astype(mx.bfloat16)
    projections = Projections(
        mx.random.normal((count, width, 8192)).astype(mx.bfloat16),
        mx.random.normal((count, width, 32, 128)).astype(mx.bfloat16),
        a=ab,
        b=ab,
        columns=delta_columns.apart(*shape.heads),
    )
    mx.eval(slots.arrays, weights, *projections)
    launch = delta.run_window if width <= delta.MAX_WIDTH else delta_prompt.run_chunks
    taken = microseconds(lambda: launch(shape, slots, weights, rows, projections))
    moved = 2 * count * 32 * 128 * 128 * 4
    sizes = {"count": count, "context": 0, "width": width}
    report("gated delta", "hybrid-4b", **sizes, taken=taken, moved=moved)


def report(
    kernel: str, shape: str, *, count: int, context: int, width: int, taken: float, moved: int
) -> None:
    figures = {
        "benchmark": "gpu_kernels",
        "kernel": kernel,
        "shape": shape,
        "rows": count,
        "context": context,
        "width": width,
        "us": round(taken, 1),
        "tb_per_s": round(moved / taken / 1e6, 2),
    }
    print(json.dumps(figures), flush=True)


class FewRows:
    """A product of few rows by weights that go round, so that they come from memory."""

    def __init__(self, depth: int, columns: tuple[int, ...], around: str) -> None:
        self.depth, self.around = depth, around
        self.moved = 2 * depth * sum(columns)
        self.outputs = columns[0] if around == "swiglu" else sum(columns)
        self.weights = [
            [mx.random.normal((count, depth), mx.bfloat16) for count in columns]
            for _ in range(max(2, (1 << 29) // self.moved))
        ]
        self.joined = [mx.concatenate(matrices) for matrices in self.weights]
        scale, epsilon = mx.random.normal((depth,), mx.bfloat16), mx.array([1e-6], mx.float32)
        self.norm = product.Norm(scale, on_device(epsilon))
        mx.eval(self.weights, self.joined, self.norm.weight, self.norm.epsilon)

    def ours(self, x: mx.array, number: int, before: mx.array) -> mx.array:
        return product.multiply(
            x,
            self.weights[number],
            norm=self.norm if self.around else None,
            swiglu=self.around == "swiglu",
            residual=before,
        )

    def operations(self, x: mx.array, number: int, before: mx.array) -> mx.array:
        normed = mx.fast.rms_norm(x, self.norm.weight, 1e-6) if self.around else x
        out = normed @ self.joined[number].T
        if self.around == "swiglu":
            gate, up = mx.split(out, 2, axis=-1)
            out = nn.silu(gate) * up
        return out + before

    def chain(self, multiply: Callable[..., mx.array], rows: int) -> Iterator[mx.array]:
        """Yield products each of which waits for the last."""
        x = mx.random.normal((rows, self.depth), mx.bfloat16)
        last = mx.zeros((rows, self.outputs), mx.bfloat16)
        mx.eval(x, last)
        for number in itertools.cycle(range(len(self.weights))):
            last = multiply(x, number, last)
            yield last

    def report(self, name: str, rows: int) -> None:
        for kernel, multiply in (("ours", self.ours), ("mlx", self.operations)):
            taken = microseconds(partial(next, self.chain(multiply, rows)))
            sizes = {"count": rows, "context": 0, "width": 1}
            report(f"product, {kernel}", name, **sizes, taken=taken, moved=self.moved)


def products() -> None:
    for name, sizes in PRODUCTS.items():
        case = FewRows(*sizes)
        for rows in (1, 8, 16, 32, 64):
            case.report(name, rows)


def warm_up() -> None:
    """An idle GPU runs at a fifth of its clock."""
    x = mx.random.normal((4096, 4096), mx.bfloat16)
    started = time.perf_counter()
    while time.perf_counter() - started < 2:
        mx.eval([x @ x for _ in range(50)])


def main() -> None:
    warm_up()
    products()
    for shape in HEADS:
        for count, context in ((1, 256), (8, 256), (64, 256), (1, 4096), (8, 4096)):
            attention(shape, count, context, 1)
        for count, width in ((64, 1), (8, 4), (32, 4), (64, 9)):
            attention(shape, count, 4096, width)
    for count in (1, 8, 32, 64):
        for width in (1, 4, 9):
            gated_delta(count, width)
    for count in (1, 8):
        gated_delta(count, 2048)


if __name__ == "__main__":
    main()
