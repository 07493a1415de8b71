"""What a loaded model keeps between rounds, and how a batch passes through it."""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx import nn

from scheduler.round import BlockCopy, SlotCopy

from .attention.layer import AttentionLayer
from .layers import Layer
from .recurrence.arrays_layer import ArraysLayer
from .recurrence.delta_layer import DeltaLayer
from .recurrence.forms import RecurrenceForm
from .recurrence.gated_delta import NATIVE
from .registry import ArraysSpec, AttentionSpec, DeltaSpec, LayerSpec
from .view import BatchView


class Store:
    """The layers of one model. Blocks and slots are numbered alike in all of them."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def open(self, view: BatchView) -> list[Any]:
        """Return the ``cache`` of every layer for one batch."""
        return [layer.open(view) for layer in self.layers]

    def pending(self, caches: list[Any]) -> list[mx.array]:
        """Arrays that must be evaluated before ``store``."""
        found: list[mx.array] = []
        for layer, cache in zip(self.layers, caches, strict=True):
            found += layer.pending(cache)
        return found

    def store(self, view: BatchView, caches: list[Any]) -> None:
        """Keep what the round may keep, and evaluate."""
        arrays: list[mx.array] = []
        for layer, cache in zip(self.layers, caches, strict=True):
            arrays += layer.store(view, cache)
        mx.eval(arrays)

    def copy(self, blocks: Iterable[BlockCopy], slots: Iterable[SlotCopy]) -> None:
        """Carry out copies, in order."""
        for block in blocks:
            mx.eval(
                [a for layer in self.layers for a in layer.copy_block(block.source, block.target)]
            )
        for slot in slots:
            mx.eval([a for layer in self.layers for a in layer.copy_slot(slot.source, slot.target)])


def build_store(
    specs: list[LayerSpec],
    *,
    num_blocks: int,
    block_size: int,
    num_slots: int,
    max_drafts: int,
    dtype: mx.Dtype,
    form: RecurrenceForm,
    gathers: bool,
) -> Store:
    """Allocate the layers of ``specs`` and give gated-delta modules their class over slots."""
    layers: list[Layer] = []
    for spec in specs:
        if isinstance(spec, AttentionSpec):
            layers.append(
                AttentionLayer(spec.shape, num_blocks, block_size, spec.window_size, gathers)
            )
        elif isinstance(spec, DeltaSpec):
            bind_to_slots(spec.module)
            layout = spec.layout(max_drafts, dtype)
            taps = spec.module.conv_kernel_size - 1
            layers.append(DeltaLayer(layout, num_slots, taps, form.run, form.name))
        else:
            assert isinstance(spec, ArraysSpec)
            named = {str(number): array for number, array in enumerate(spec.arrays)}
            layers.append(ArraysLayer(named, num_slots))
    return Store(layers)


def bind_to_slots(module: nn.Module) -> None:
    """Give a GatedDeltaNet instance the class that reads slots; parameters stay."""
    if type(module) in NATIVE:
        module.__class__ = NATIVE[type(module)]
