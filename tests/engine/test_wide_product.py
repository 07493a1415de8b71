"""Which products go to the kernel for very many columns, without a device to run it."""

import mlx.core as mx
import pytest
from mlx import nn

from engine.cuda import exact_products, product, wide_product

DEPTH = 256


class Multiplied(Exception):
    """By a kernel, named."""


@pytest.fixture(autouse=True)
def _kernels_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(name: str):
        def multiply(*_, **__) -> mx.array:
            raise Multiplied(name)

        return multiply

    monkeypatch.setattr(wide_product, "count_multiprocessors", lambda: 132)
    monkeypatch.setattr(wide_product, "multiply", by("wide"))
    monkeypatch.setattr(product, "multiply", by("few"))


def layer(columns: int, *, bias: bool = False, embeds: bool = False) -> nn.Module:
    made = nn.Embedding(columns, DEPTH) if embeds else nn.Linear(DEPTH, columns, bias=bias)
    made.set_dtype(mx.bfloat16)
    return made


def kernel_of(made: nn.Module, rows: int) -> str:
    x = mx.zeros((rows, 1, DEPTH), mx.bfloat16)
    with pytest.raises(Multiplied) as multiplied:
        (made.as_linear if isinstance(made, nn.Embedding) else made)(x)
    return str(multiplied.value)


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_vocabulary_is_multiplied_by_warpgroups(embeds, rows) -> None:
    made = layer(wide_product.FEWEST_COLUMNS, embeds=embeds)
    assert product.bind(made) == 1
    assert kernel_of(made, rows) == "wide"


def test_what_has_fewer_columns_or_a_bias_is_not(monkeypatch) -> None:
    few, biased = layer(1024), layer(wide_product.FEWEST_COLUMNS, bias=True)
    other = layer(wide_product.FEWEST_COLUMNS)
    assert [product.bind(made) for made in (few, biased, other)] == [1, 1, 1]
    assert kernel_of(few, 3) == kernel_of(biased, 3) == "few"
    monkeypatch.setattr(wide_product, "count_multiprocessors", lambda: 0)
    assert kernel_of(other, 3) == "few"


def test_exact_mode_multiplies_as_everything_else_of_it_does() -> None:
    made = layer(wide_product.FEWEST_COLUMNS)
    product.bind(made)
    assert exact_products.bind(made) == 1
    assert kernel_of(made, 3) == "few"
