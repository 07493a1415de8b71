"""Products of few rows give what mlx's own give, whichever way they go."""

import threading

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu import products
from engine.cpu.lanes import Lanes
from engine.cpu.products import (
    MOST_ROWS,
    SMALL,
    SkinnyEmbedding,
    SkinnyLinear,
    SkinnyWeight,
    quicken,
    tile_outputs,
)


def lanes(count: int) -> Lanes | None:
    return Lanes.make(count) if count else None


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1, 48), (8, 1, 48), (3, 5, 48), (2, MOST_ROWS, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_quickened_linear_says_the_same(shape, bias, count) -> None:
    layer, x = nn.Linear(48, 40, bias=bias), mx.random.normal(shape)
    expected = layer(x)
    assert quicken(layer, lanes(count)) == 1
    assert type(layer) is SkinnyLinear
    assert layer(x).shape == expected.shape
    assert mx.allclose(layer(x), expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 31, 32, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(3072, 512), (2048, 1024), (1187 * 4, 256)])
def test_tiles_on_every_number_of_lanes_have_the_same_bits(outputs, inputs, rows) -> None:
    weight = mx.random.normal((outputs, inputs)) * inputs**-0.5
    x = mx.random.normal((rows, inputs))
    expected = x @ weight.T
    alone = SkinnyWeight(weight, lanes(1)).product(x)
    assert mx.allclose(alone, expected, atol=1e-4)
    for count in (2, 3):
        assert mx.array_equal(SkinnyWeight(weight, lanes(count)).product(x), alone)


def test_large_weights_are_divided_among_lanes_and_small_ones_are_not() -> None:
    large = SkinnyWeight(mx.zeros((3072, 1024)), lanes(2))
    small = SkinnyWeight(mx.zeros((1024, 512)), lanes(2))
    for weight in (large, small):
        weight.product(mx.zeros((8, weight.weight.shape[1])))
    assert [len(layout) for layout in large._layouts.values()] == [2]
    assert [len(layout) for layout in small._layouts.values()] == [1]


@pytest.mark.parametrize("rows", range(1, 33))
def test_a_tile_divides_the_outputs_and_stays_small(rows) -> None:
    for outputs, inputs in ((3072, 1024), (1024, 3584), (151936, 1024), (50257, 768), (768, 256)):
        tile = tile_outputs(outputs, inputs, rows)
        if tile:
            assert outputs % tile == 0
            assert tile * inputs * rows <= SMALL
    assert tile_outputs(1024, 400_000, 1) == 0  # no tile is small enough


def test_a_quickened_embedding_says_the_same_as_output_layer() -> None:
    layer, x = nn.Embedding(100, 48), mx.random.normal((4, 1, 48))
    expected = layer.as_linear(x)
    quicken(layer, lanes(2))
    assert type(layer) is SkinnyEmbedding
    assert mx.allclose(layer.as_linear(x), expected, atol=1e-5)
    assert mx.array_equal(layer(mx.array([3, 5])), layer.weight[mx.array([3, 5])])


def test_only_the_instances_of_one_model_change() -> None:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    quantized = nn.QuantizedLinear(64, 64)
    quicken(one, None)
    assert quicken(quantized, None) == 0
    assert type(other) is nn.Linear
    assert nn.Linear.__call__ is not SkinnyLinear.__call__


def test_parameters_are_those_of_the_linear() -> None:
    layer = nn.Linear(8, 8)
    quicken(layer, lanes(2))
    layer(mx.zeros((1, 8)))
    assert set(layer.parameters()) == {"weight", "bias"}


def test_threads_have_lanes_of_their_own() -> None:
    found = [Lanes.of_thread(), Lanes.of_thread()]
    thread = threading.Thread(target=lambda: found.append(Lanes.of_thread()))
    thread.start()
    thread.join()
    assert found[0] is found[1]
    assert found[2] is not found[0]


def test_a_division_covers_everything_once() -> None:
    for number in (1, 2, 3):
        for count in (1, 2, 7):
            stretches = Lanes.make(number).divide(count)
            places = [place for _, first, end in stretches for place in range(first, end)]
            assert places == list(range(count))
            assert len(stretches) == min(number, count)


@pytest.mark.parametrize(
    ("kernels", "tiled"), [("SkylakeX", True), ("Haswell", False), ("Sandybridge", False)]
)
def test_tiles_are_for_the_kernels_that_gain_by_them(monkeypatch, kernels, tiled) -> None:
    info = products.blas.BlasInfo("openblas", threads=2, kernels=kernels)
    monkeypatch.setattr(products.blas, "current", lambda: info)
    assert (products.lanes_here() is not None) is tiled
