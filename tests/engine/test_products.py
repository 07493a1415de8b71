"""Products with the weights on the left give what mlx's own give."""

import mlx.core as mx
import pytest
from mlx import nn

from engine.products import MOST_ROWS, LeftEmbedding, LeftLinear, put_weights_left


@pytest.mark.parametrize("shape", [(1, 1, 48), (8, 1, 48), (3, 5, 48), (2, MOST_ROWS, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_turned_around_says_the_same(shape, bias) -> None:
    layer, x = nn.Linear(48, 40, bias=bias), mx.random.normal(shape)
    expected = layer(x)
    assert put_weights_left(layer) == 1
    assert type(layer) is LeftLinear
    assert layer(x).shape == expected.shape
    assert mx.allclose(layer(x), expected, atol=1e-5)


def test_an_embedding_turned_around_says_the_same_as_output_layer() -> None:
    layer, x = nn.Embedding(100, 48), mx.random.normal((4, 1, 48))
    expected = layer.as_linear(x)
    put_weights_left(layer)
    assert type(layer) is LeftEmbedding
    assert mx.allclose(layer.as_linear(x), expected, atol=1e-5)
    assert mx.array_equal(layer(mx.array([3, 5])), layer.weight[mx.array([3, 5])])


def test_only_the_instances_of_one_model_change() -> None:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    quantized = nn.QuantizedLinear(64, 64)
    put_weights_left(one)
    assert put_weights_left(quantized) == 0
    assert type(other) is nn.Linear
    assert nn.Linear.__call__ is not LeftLinear.__call__
