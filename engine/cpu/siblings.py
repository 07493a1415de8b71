"""Weights that multiply the same input, in one product for all of them.

The projections of an attention layer, say. A model asks for them one after the other: whoever is
asked first multiplies for the others too. That is fewer operations, and a handful of outputs more
in a product that is large already.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama, qwen2, qwen3, qwen3_5, qwen3_next

from ..drafting.mtp import MTPHead
from .divided_panels import DividedPanels
from .lanes import Lanes
from .panels import Panels

_ATTENTION = ("q_proj", "k_proj", "v_proj")
_FAMILIES: dict[type[Any], tuple[str, ...]] = {  # that hand all of these one and the same array
    llama.Attention: _ATTENTION,
    qwen2.Attention: _ATTENTION,
    qwen3.Attention: _ATTENTION,
    qwen3_next.Qwen3NextAttention: _ATTENTION,
    qwen3_next.Qwen3NextGatedDeltaNet: ("in_proj_qkvz", "in_proj_ba"),
    qwen3_5.GatedDeltaNet: ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
}


def find(model: Any) -> Iterator[list[Any]]:
    """The layers of ``model`` that multiply the same input, each time together.

    A head that follows asks for keys and values alone.
    """
    alone = {"q_proj"} if isinstance(model, MTPHead) else set()
    for module in model.modules():
        for family, names in _FAMILIES.items():
            if isinstance(module, family):
                yield [getattr(module, name) for name in names if name not in alone]


class Siblings:
    """The weights together, and the product that some of them have not been asked for yet."""

    def __init__(self, weights: Sequence[mx.array], panels: Panels) -> None:
        """``panels`` are those of all ``weights``, one after the other."""
        self.divided = DividedPanels(panels)
        self.size = sum(weight.size for weight in weights)
        self._ends = [0]
        for weight in weights:
            self._ends.append(self._ends[-1] + weight.shape[0])
        self._input: mx.array | None = None
        self._products: dict[int, mx.array] = {}  # of those that have not been asked for

    @classmethod
    def of(cls, weights: Sequence[mx.array]) -> "Siblings | None":
        """Copy ``weights``; None where there can be no panels of them, see Panels.of."""
        if len({(weight.shape[1], weight.dtype) for weight in weights}) > 1:
            return None
        panels = Panels.of(mx.concatenate(list(weights)))
        return None if panels is None else cls(weights, panels)

    def product(self, number: int, x: mx.array, lanes: Lanes) -> mx.array:
        """x (..., inputs) by weight ``number``: (..., outputs)."""
        if self._input is not x or number not in self._products:
            flat = x.reshape(-1, x.shape[-1])
            product = self.divided.product(flat, lanes).reshape(*x.shape[:-1], -1)
            self._input = x
            self._products = dict(enumerate(mx.split(product, self._ends[1:-1], axis=-1)))
        product = self._products.pop(number)
        if not self._products:
            self._input = None
        return product
