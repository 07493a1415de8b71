"""The product kernels for few rows against float64, and that rows do not depend on each other."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from engine.cuda import product
from engine.cuda.product import Norm
from engine.cuda.product_form import RingForm, StreamedForm

pytestmark = pytest.mark.gpu

FORMS = [RingForm(2, column_tiles, steps=2) for column_tiles in (1, 2, 4, 8)]
FORMS += [StreamedForm(4), StreamedForm(8)]


def normal(*shape: int, scale: float = 1.0) -> mx.array:
    return (mx.random.normal(shape) * scale).astype(mx.bfloat16)


def as_float64(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def normalized(x: mx.array, norm: Norm) -> np.ndarray:
    numbers = as_float64(x)
    squares = np.mean(numbers**2, axis=-1, keepdims=True)
    return numbers / np.sqrt(squares + norm.epsilon.item()) * as_float64(norm.weight)


def assert_near(found: mx.array, reference: np.ndarray) -> None:
    """Within a place of bfloat16, on average."""
    assert found.shape == reference.shape
    error = np.linalg.norm(as_float64(found) - reference) / np.linalg.norm(reference)
    assert error < 4e-3


@pytest.mark.parametrize("depth", [256, 1024, 2560, 9728])
@pytest.mark.parametrize("columns", [(96,), (1024, 512, 32, 32), (2560, 16)], ids=str)
def test_weights_side_by_side_with_all_that_may_surround_a_product(depth, columns) -> None:
    x = normal(2, 17, depth)
    weights = [normal(count, depth, scale=depth**-0.5) for count in columns]
    norm = Norm(normal(depth), mx.array([1e-3]))
    bias, residual = normal(sum(columns)), normal(2, 17, sum(columns))
    whole = as_float64(mx.concatenate(weights)).T
    plain, normed = as_float64(x) @ whole, normalized(x, norm) @ whole
    assert_near(product.multiply(x, weights), plain)
    assert_near(product.multiply(x, weights, bias=bias), plain + as_float64(bias))
    assert_near(product.multiply(x, weights, norm=norm), normed)
    assert_near(
        product.multiply(x, weights, norm=norm, bias=bias, residual=residual),
        normed + as_float64(bias) + as_float64(residual),
    )


@pytest.mark.parametrize("sizes", [(96, 256), (3072, 1024), (9728, 2560)], ids=str)
def test_gate_and_up_become_one_activation(sizes) -> None:
    x, residual = normal(9, sizes[1]), normal(9, sizes[0])
    gate, up = (normal(*sizes, scale=sizes[1] ** -0.5) for _ in range(2))
    norm = Norm(normal(sizes[1]), mx.array([1e-6]))
    for around, input_ in (({}, as_float64(x)), ({"norm": norm}, normalized(x, norm))):
        active = silu(input_ @ as_float64(gate).T) * (input_ @ as_float64(up).T)
        found = product.multiply(x, (gate, up), swiglu=True, **around)
        assert np.linalg.norm(as_float64(found) - active) / np.linalg.norm(active) < 6e-3
        more = product.multiply(x, (gate, up), swiglu=True, residual=residual, **around)
        assert mx.array_equal(more, found + residual)


@pytest.mark.parametrize("depth", [512, 2560, 9728])
@pytest.mark.parametrize("around", ["nothing", "norm", "norm and activation"])
def test_no_row_depends_on_the_others_nor_on_the_form(depth, around) -> None:
    weights = [normal(608, depth), normal(608, depth)]
    x, residual = normal(64, depth), normal(64, 1216)
    kinds = {
        "nothing": {"residual": residual},
        "norm": {"norm": Norm(normal(depth), mx.array([1e-6]))},
        "norm and activation": {"norm": Norm(normal(depth), mx.array([1e-6])), "swiglu": True},
    }
    kind = kinds[around]
    whole = product.multiply(x, weights, **kind, form=FORMS[-1])
    for rows in (1, 2, 5, 8, 9, 16, 17, 32, 33, 64):
        of_rows = slice(64 - rows, 64)
        if "residual" in kind:
            kind = {"residual": residual[of_rows]}
        for form in FORMS:
            if 8 * form.column_tiles >= rows:
                some = product.multiply(x[of_rows], weights, **kind, form=form)
                assert mx.array_equal(some, whole[of_rows]), (rows, form)


def test_what_is_not_taken_is_said() -> None:
    weight = mx.zeros((48, 512), mx.bfloat16)
    assert product.takes(weight)
    assert product.takes(*[weight] * 4)
    assert product.why_not(weight.astype(mx.float16)) == "weights of float16"
    assert product.why_not(weight, mx.zeros((48, 256), mx.bfloat16)) is not None
    assert product.why_not(mx.zeros((48, 320), mx.bfloat16)) == "weights of shape (48, 320)"
    assert product.why_not(mx.zeros((40, 512), mx.bfloat16)) == "40 columns"
    assert product.why_not(*[weight] * 5) == "5 matrices of weights"


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
