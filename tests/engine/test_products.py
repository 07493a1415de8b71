"""Products of few rows give what mlx's own give, whichever way they go."""

import threading

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu import products
from engine.cpu.divided_panels import STRETCH
from engine.cpu.lanes import Lanes
from engine.cpu.panels import MOST_ROWS as PANEL_ROWS
from engine.cpu.panels import PANEL, SMALL, Panels, cut_rows
from engine.cpu.products import SkinnyEmbedding, SkinnyLinear, quicken
from engine.cpu.skinny_weight import MOST_ROWS, SkinnyWeight, tile_outputs


@pytest.fixture(autouse=True)
def given_threads(monkeypatch) -> list[int]:
    """What the BLAS is told; it keeps its own."""
    told: list[int] = []
    monkeypatch.setattr(products.blas, "set_threads", told.append)
    return told


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1, 48), (8, 1, 48), (3, 5, 48), (2, MOST_ROWS, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_quickened_linear_says_the_same(monkeypatch, shape, bias, count, tiles) -> None:
    monkeypatch.setattr(products, "LANE_VALUES", 1)
    layer, x = nn.Linear(48, 40, bias=bias), mx.random.normal(shape)
    expected = layer(x)
    assert quicken(layer, Lanes.make(count), tiles=tiles) == 1
    assert type(layer) is SkinnyLinear
    assert layer(x).shape == expected.shape
    assert mx.allclose(layer(x), expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 31, 32])
@pytest.mark.parametrize(("outputs", "inputs"), [(3072, 512), (2048, 1024), (1187 * 4, 256)])
def test_tiles_on_every_number_of_lanes_have_the_same_bits(outputs, inputs, rows) -> None:
    weight = mx.random.normal((outputs, inputs)) * inputs**-0.5
    x = mx.random.normal((rows, inputs))
    expected = x @ weight.T
    alone = SkinnyWeight(weight, Lanes.make(1), tiles=True).product(x)
    assert mx.allclose(alone, expected, atol=1e-4)
    for count in (2, 3):
        assert mx.array_equal(SkinnyWeight(weight, Lanes.make(count), tiles=True).product(x), alone)


@pytest.mark.parametrize("rows", [33, 64, 65, 200])
@pytest.mark.parametrize("tiles", [False, True])
def test_many_rows_are_multiplied_as_by_mlx(rows, tiles) -> None:
    weight, x = mx.random.normal((1024, 1500)) * 0.03, mx.random.normal((rows, 1500))
    for count in (1, 2, 3):
        product = SkinnyWeight(weight, Lanes.make(count), tiles=tiles).product(x)
        assert mx.allclose(product, x @ weight.T, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3072, 512), (1024, 3584), (2080, 1024), (1000, 1024)])
def test_panels_say_the_same_on_every_number_of_rows(shape, count) -> None:
    outputs, inputs = shape
    weight = mx.random.normal((outputs, inputs)) * inputs**-0.5
    skinny = SkinnyWeight(weight, Lanes.make(count), tiles=True, panels=True)
    assert (skinny.divided is not None) is (outputs % PANEL == 0)
    for rows in (1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 65, 100):
        x = mx.random.normal((rows, inputs))
        assert mx.allclose(skinny.product(x), x @ weight.T, rtol=1e-3, atol=1e-4)
        if skinny.divided is not None and rows <= PANEL_ROWS:
            assert len(skinny.parts(x)) == count


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_many_outputs_are_made_by_the_lanes_in_turn(count) -> None:
    outputs, inputs = count * STRETCH + 3 * PANEL, 64
    weight = mx.random.normal((outputs, inputs)) / 8
    lanes = Lanes.make(count)
    skinny = SkinnyWeight(weight, lanes, tiles=True, panels=True)
    for rows in (1, 3, 8, 40):
        x = mx.random.normal((rows, inputs))
        assert mx.allclose(skinny.product(x), x @ weight.T, rtol=1e-3, atol=1e-4)
        in_turn = skinny.divided.in_turn(lanes)
        assert [stream for stream, _ in in_turn] == [*lanes.streams, lanes.streams[0]]
        assert [panels.count * PANEL for _, panels in in_turn] == [*[STRETCH] * count, 3 * PANEL]


def test_a_way_that_was_chosen_is_given_up_when_inputs_are_cut() -> None:
    lanes = Lanes.make(2)
    up, down = mx.random.normal((2048, 1024)), mx.random.normal((1024, 2048)) / 32
    before, skinny = (SkinnyWeight(w, lanes, tiles=True, panels=True) for w in (up, down))
    x = mx.random.normal((4, 2048))
    whole = skinny.product(x)
    skinny.cut_inputs_like_outputs(before)
    assert skinny.is_cut(4)
    assert mx.allclose(skinny.product(x), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inputs", [256, 1024, 2048, 3584])
def test_rows_are_cut_until_a_panel_takes_them(inputs) -> None:
    for rows in range(1, PANEL_ROWS + 1):
        cuts, each = cut_rows(rows, inputs)
        assert each * inputs * PANEL <= SMALL
        assert rows <= cuts * each < rows + cuts


def test_panels_are_copies_of_large_float32_weights_where_memory_is_plenty(monkeypatch) -> None:
    def panels_of(weight: mx.array, *, panels: bool = True) -> Panels | None:
        divided = SkinnyWeight(weight, Lanes.make(1), tiles=True, panels=panels).divided
        return None if divided is None else divided.panels

    weight = mx.random.normal((1024, 1024))
    copied = panels_of(weight)
    assert copied is not None
    assert mx.array_equal(copied.values.swapaxes(1, 2).reshape(1024, 1024), weight)
    assert panels_of(weight, panels=False) is None
    assert panels_of(weight.astype(mx.bfloat16)) is None
    assert panels_of(weight[:32]) is None  # a product of its own is small enough
    layer = nn.Linear(1024, 1024)
    for available, fits in ((4 * layer.weight.nbytes, True), (layer.weight.nbytes, False)):
        monkeypatch.setattr(products, "memory_available", lambda found=available: found)
        assert products.panels_fit(layer) is fits
    monkeypatch.setattr(products, "memory_available", lambda: None)
    assert not products.panels_fit(layer)


def test_all_panels_are_made_at_once_on_the_lanes_in_turn() -> None:
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)], nn.Linear(8, 8))
    lanes = Lanes.make(2)
    assert quicken(model, lanes, tiles=True, panels=True) == 4
    copies = [layer.skinny.copies for layer in model.layers]
    assert [len(each) for each in copies] == [1, 1, 1, 0]
    mx.eval(model.parameters())
    before = mx.get_active_memory()
    products.copy_panels(model)
    assert mx.get_active_memory() - before == 3 * 1024 * 1024 * 4


@pytest.mark.parametrize("rows", [8, 200])
def test_alone_a_product_stays_on_one_lane(rows) -> None:
    lanes = Lanes.make(2)
    skinny = SkinnyWeight(mx.random.normal((2048, 1024)), lanes, tiles=True)
    x = mx.random.normal((rows, 1024))
    shared = skinny.product(x)
    with lanes.alone(lanes.streams[1]):
        ((stream, _),) = skinny.parts(x)
        alone = skinny.product(x)
        assert mx.default_stream(mx.cpu) == lanes.streams[1]
    assert stream is lanes.streams[1]
    assert mx.allclose(alone, shared, rtol=1e-4, atol=1e-3)
    assert [stream for stream, _ in skinny.parts(x)] == list(lanes.streams)


def test_large_products_are_divided_among_lanes_and_small_ones_are_not() -> None:
    large = SkinnyWeight(mx.zeros((3072, 1024)), Lanes.make(2), tiles=True)
    small = SkinnyWeight(mx.zeros((1024, 512)), Lanes.make(2), tiles=True)

    def parts(weight: SkinnyWeight, rows: int) -> int:
        return len(weight.parts(mx.zeros((rows, weight.weight.shape[1]))))

    assert [parts(large, rows) for rows in (1, 8, 32)] == [2, 2, 2]
    assert [parts(small, rows) for rows in (2, 8, 16, 32)] == [1, 1, 2, 2]


def test_with_lanes_the_blas_keeps_one_thread(given_threads) -> None:
    quicken(nn.Linear(8, 8), Lanes.make(1), tiles=True)
    assert given_threads == []
    quicken(nn.Linear(8, 8), Lanes.make(2), tiles=True)
    assert given_threads == [1]


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
    quicken(layer, Lanes.make(2), tiles=True)
    assert type(layer) is SkinnyEmbedding
    assert mx.allclose(layer.as_linear(x), expected, atol=1e-5)
    assert mx.array_equal(layer(mx.array([3, 5])), layer.weight[mx.array([3, 5])])


def test_only_the_instances_of_one_model_change() -> None:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    quantized = nn.QuantizedLinear(64, 64)
    quicken(one, Lanes.make(1), tiles=True)
    assert quicken(quantized, Lanes.make(1), tiles=True) == 0
    assert type(other) is nn.Linear
    assert nn.Linear.__call__ is not SkinnyLinear.__call__


def test_parameters_are_those_of_the_linear() -> None:
    layer = nn.Linear(8, 8)
    quicken(layer, Lanes.make(2), tiles=True)
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
    assert products.tiles_pay() is tiled


def test_a_model_of_small_products_is_not_worth_lanes() -> None:
    small, large = nn.Linear(512, 512), nn.Linear(1024, 1024)
    assert products.mostly_large(nn.Sequential(small, large))
    assert not products.mostly_large(nn.Sequential(*[nn.Linear(512, 512) for _ in range(5)], large))
    assert not products.mostly_large(nn.Sequential())


def test_a_quickened_model_is_as_large_as_before() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024))
    quicken(model, Lanes.make(2), tiles=False)
    assert products.mostly_large(model)
