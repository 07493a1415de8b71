"""Products by very many rows of weights against float64, and that no row depends on the others."""

import mlx.core as mx
import numpy as np
import pytest

from engine.cuda import wide_product
from engine.cuda.device import count_multiprocessors
from tests.gpu.test_product_kernel import as_float64, assert_near, normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_multiprocessors() == 0, reason="needs an sm_90 device"),
]


@pytest.mark.parametrize("depth", [256, 2560, 9728])
@pytest.mark.parametrize("columns", [112, 12_688, 152_064])
def test_products_equal_float64s_whatever_the_rows(depth, columns) -> None:
    if columns * depth > 400e6:
        pytest.skip("weights that no model has")
    mx.random.seed(0)
    x, weight = normal(64, depth), normal(columns, depth, scale=depth**-0.5)
    whole = wide_product.multiply(x.reshape(16, 4, depth), weight).reshape(64, columns)
    some = slice(None) if columns < 20_000 else slice(-3000, None)
    assert_near(whole[:, some], as_float64(x) @ as_float64(weight[some]).T)
    others = x.astype(mx.float32) @ weight.astype(mx.float32).T
    assert np.abs(as_float64(whole) - as_float64(others)).max() < 0.05
    for rows in (1, 7, 8, 9, 16, 20, 32, 33, 63):
        found = wide_product.multiply(x[64 - rows :], weight)
        assert mx.array_equal(found, whole[64 - rows :]), rows
