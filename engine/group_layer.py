"""A layer that keeps several things at once: attention beside a recurrence, say."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .layers import Layer
from .view import BatchView


class GroupLayer(Layer):
    """The layers behind one of mlx-lm's CacheLists."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.kind = " beside ".join(layer.kind for layer in layers)

    def open(self, view: BatchView) -> list[Any]:
        return [layer.open(view) for layer in self.layers]

    def pending(self, cache: list[Any]) -> list[mx.array]:
        pairs = zip(self.layers, cache, strict=True)
        return [array for layer, part in pairs for array in layer.pending(part)]

    def store(self, view: BatchView, cache: list[Any]) -> list[mx.array]:
        pairs = zip(self.layers, cache, strict=True)
        return [array for layer, part in pairs for array in layer.store(view, part)]

    def copy_block(self, source: int, target: int) -> list[mx.array]:
        return [array for layer in self.layers for array in layer.copy_block(source, target)]

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        return [array for layer in self.layers for array in layer.copy_slot(source, target)]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for layer in self.layers for array in layer.arrays]
