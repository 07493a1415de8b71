"""What a loaded model keeps between rounds, and how a batch passes through it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from scheduler.round import BlockCopy, Row, SlotCopy

from .backend import Backend
from .batch import Window
from .division import (
    cut_at_captures,
    cut_to_width,
    kept_part,
    num_drafts_that_can_be_kept,
    of_one_length,
)
from .group_layer import GroupLayer
from .layers import Layer
from .recurrence.arrays_layer import ArraysLayer
from .recurrence.forms import RecurrenceForm
from .recurrence.gated_delta import NATIVE
from .registry import ArraysSpec, AttentionSpec, DeltaSpec, GroupSpec, LayerSpec, flatten
from .view import BatchView


@dataclass(frozen=True, slots=True)
class Method:
    """How a model's modules take a batch, as trying them out at load shows.

    gathers: attention gets its keys and values gathered, for it looks into them.
    pads: rows of unequal windows are padded; a recurrent module may take padding for tokens.
    widest: certain tokens of a row that run at once; longer chunks run in pieces. None: all.
    """

    gathers: bool = False
    pads: bool = True
    widest: int | None = None


class Store:
    """The layers of one model. Blocks and slots are numbered alike in all of them."""

    def __init__(self, layers: list[Layer], method: Method, *, cuts: bool = False) -> None:
        self.layers = layers
        self.method = method
        # states are seen only before and after windows: cut them, and run accepted parts again
        self.cuts = cuts

    def divide(self, windows: Sequence[Window]) -> list[list[Window]]:
        """Return ``windows``, or the pieces of them, in groups to run one after the other."""
        stages = cut_at_captures(windows) if self.cuts else [list(windows)]
        widest = self.method.widest
        if widest is not None:
            stages = [part for stage in stages for part in cut_to_width(stage, widest)]
        if self.method.pads:
            return stages
        return [group for stage in stages for group in of_one_length(stage)]

    def num_drafts(self, row: Row, block_size: int) -> int:
        """How many of the drafts that ``row`` may carry its layers can take."""
        return num_drafts_that_can_be_kept(row, block_size) if self.cuts else row.num_drafts

    def to_run_again(self, windows: Sequence[Window], kept: Sequence[int]) -> list[Window]:
        """The committed parts of windows that must run again, for their states were not seen."""
        if not self.cuts:
            return []
        pairs = zip(windows, kept, strict=True)
        return [kept_part(window, count) for window, count in pairs if count < window.length]

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

    def lend(self, pairs: Mapping[int, int]) -> None:
        """Let slots begin with what others keep, source: target; cheaper than copying."""
        mx.eval([array for layer in self.layers for array in layer.lend_slots(pairs)])

    def copy(self, blocks: Iterable[BlockCopy], slots: Iterable[SlotCopy]) -> None:
        """Carry out copies, in order."""
        for arrays in self._copies(blocks, slots):
            mx.eval(arrays)

    def copies(self, blocks: Iterable[BlockCopy], slots: Iterable[SlotCopy]) -> list[mx.array]:
        """Arrays whose evaluation carries out copies, none of which builds on another."""
        return [array for arrays in self._copies(blocks, slots) for array in arrays]

    def _copies(
        self, blocks: Iterable[BlockCopy], slots: Iterable[SlotCopy]
    ) -> Iterator[list[mx.array]]:
        """Begin one copy after the other; return what to evaluate for each."""
        for block in blocks:
            source, target = block.source, block.target
            yield [array for layer in self.layers for array in layer.copy_block(source, target)]
        for slot in slots:
            source, target = slot.source, slot.target
            yield [array for layer in self.layers for array in layer.copy_slot(source, target)]


def build_store(
    specs: list[LayerSpec],
    *,
    num_blocks: int,
    block_size: int,
    num_slots: int,
    max_drafts: int,
    dtype: mx.Dtype,
    form: RecurrenceForm,
    method: Method,
    backend: Backend | None = None,
) -> Store:
    """Allocate the layers of ``specs`` and give gated-delta modules their class over slots."""
    make_layers = backend or Backend()

    def make(spec: LayerSpec) -> Layer:
        if isinstance(spec, GroupSpec):
            return GroupLayer([make(part) for part in spec.parts])
        if isinstance(spec, AttentionSpec):
            pages = (spec.shape, num_blocks, block_size)
            return make_layers.attention_layer(
                *pages, window_size=spec.window_size, gathers=method.gathers
            )
        if isinstance(spec, DeltaSpec):
            bind_to_slots(spec.module)
            return make_layers.delta_layer(spec.module, num_slots, max_drafts, dtype, form)
        return ArraysLayer(spec.arrays, num_slots)

    layers = [make(spec) for spec in specs]
    cuts = any(isinstance(spec, ArraysSpec) for spec in flatten(specs))
    return Store(layers, method, cuts=cuts)


def bind_to_slots(module: nn.Module) -> None:
    """Give a GatedDeltaNet instance the class that reads slots; parameters stay."""
    if type(module) in NATIVE:
        module.__class__ = NATIVE[type(module)]
