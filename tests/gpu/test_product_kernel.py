"""The product kernel for few rows against float64, and that rows do not depend on each other."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from engine.cuda import product

pytestmark = pytest.mark.gpu


def normal(*shape: int) -> mx.array:
    return mx.random.normal(shape).astype(mx.bfloat16)


def as_float64(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


@pytest.mark.parametrize("sizes", [(512, 2560), (9728, 256), (32, 9728)], ids=str)
def test_products_round_once_and_no_row_depends_on_the_others(sizes) -> None:
    weight, x = normal(*sizes), normal(product.MOST_ROWS, sizes[1])
    mx.eval(weight, x)
    whole = product.multiply(x, weight)
    reference = as_float64(x) @ as_float64(weight).T
    error = np.linalg.norm(as_float64(whole) - reference) / np.linalg.norm(reference)
    assert error < 2.5e-3  # half a place of bfloat16, on average
    for rows in (1, 3, 8, 9, 16, 17, 33):
        some = product.multiply(x[7 : 7 + rows], weight)
        assert mx.array_equal(some, whole[7 : 7 + rows]), rows


def test_modules_multiply_as_before_and_others_are_left_alone() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.with_bias = nn.Linear(256, 512, bias=True)
            self.odd = nn.Linear(250, 512)
            self.embedding = nn.Embedding(320, 256)

    model = Three()
    model.set_dtype(mx.bfloat16)
    x, few, many = normal(2, 3, 256), normal(1, 250), normal(65, 256)
    before = [model.with_bias(x), model.embedding.as_linear(x), model.with_bias(many)]
    odd = model.odd(few)
    mx.eval(before, odd)
    assert product.bind(model) == 2
    after = [model.with_bias(x), model.embedding.as_linear(x), model.with_bias(many)]
    for old, new in zip(before, after, strict=True):
        assert mx.allclose(old, new, rtol=0.02, atol=0.02)
    assert mx.array_equal(model.odd(few), odd)
