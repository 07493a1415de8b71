"""Linear layers whose rows come out the same, bitwise, whatever stands beside them: exact mode."""

from typing import Any

import mlx.core as mx
from mlx import nn

from ..quick_classes import exchange
from . import fusing, product


class ExactLinear(nn.Linear):
    """A Linear that takes any number of rows in turns."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        return fusing.multiply(x, self["weight"], bias=self.get("bias", None))


class ExactEmbedding(nn.Embedding):
    """An Embedding that is the output layer too."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        return fusing.multiply(x, self["weight"])


EXACT: dict[type[Any], type[Any]] = {
    nn.Linear: ExactLinear,
    nn.Embedding: ExactEmbedding,
    product.SkinnyLinear: ExactLinear,
    product.SkinnyEmbedding: ExactEmbedding,
}


def bind(model: Any) -> int:
    """Give the products of ``model`` that the kernel takes their class; return how many.

    Only these instances change.
    """
    return len(exchange(model, EXACT, product.takes_weight_of))
