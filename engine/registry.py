"""Which memory each layer of a loaded model needs, found by asking the model itself.

mlx-lm's own caches say what a layer keeps; a probe of two tokens through them shows the shapes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from .errors import ModelError
from .pages import PageShape
from .recurrence.delta_layer import slot_layout
from .recurrence.gated_delta import NATIVE, GatedDelta
from .slots import SlotArray


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An attention layer: what it keeps of a position, and how far back it sees."""

    shape: PageShape
    window_size: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """A GatedDeltaNet layer: its module."""

    module: nn.Module

    def layout(self, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
        """What a slot keeps; see delta_layer.slot_layout."""
        return slot_layout(self.module, max_drafts, dtype)


@dataclass(frozen=True, slots=True)
class ArraysSpec:
    """Another recurrent layer: the arrays its module keeps, None where it keeps nothing."""

    arrays: tuple[SlotArray | None, ...]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A layer that keeps several of these at once."""

    parts: tuple["LayerSpec", ...]


LayerSpec = AttentionSpec | DeltaSpec | ArraysSpec | GroupSpec


def flatten(specs: Iterable[LayerSpec]) -> Iterator[LayerSpec]:
    """Yield all specs that are not groups, those within groups among them."""
    for spec in specs:
        if isinstance(spec, GroupSpec):
            yield from flatten(spec.parts)
        else:
            yield spec


def inspect_layers(model: nn.Module) -> list[LayerSpec]:
    """Return one spec for each cache that mlx-lm would make for ``model``.

    Raises ModelError for kinds of cache that cannot be paged.
    """
    caches = make_prompt_cache(model)
    model(mx.array([[1, 2]]), cache=caches)
    mx.eval([cache.state for cache in caches])
    layers = model.layers
    return [_spec(number, layers, cache) for number, cache in enumerate(caches)]


def _spec(number: int, layers: Any, cache: Any) -> LayerSpec:
    if isinstance(cache, CacheList) and any(isinstance(c, ArraysCache) for c in cache.caches):
        return GroupSpec(tuple(_spec(number, layers, part) for part in cache.caches))
    if isinstance(cache, (KVCache, RotatingKVCache)):
        window = cache.max_size if isinstance(cache, RotatingKVCache) else None
        if isinstance(cache, RotatingKVCache) and cache.keep:
            raise ModelError(
                f"layer {number} keeps its first {cache.keep} positions beside a sliding window; "
                "attention sinks of this kind are not supported"
            )
        keys: Any = cache.keys
        values: Any = cache.values
        shape = PageShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
        return AttentionSpec(shape, window)
    if isinstance(cache, ArraysCache):
        module = next((m for m in _modules(layers, number) if _is_native(m)), None)
        if module is not None:
            return DeltaSpec(module)
        arrays: list[Any] = cache.cache
        return ArraysSpec(
            tuple(None if a is None else SlotArray(a.shape[1:], a.dtype) for a in arrays)
        )
    raise ModelError(
        f"layer {number} keeps its state in a {type(cache).__name__}, which cannot be paged; "
        "supported are KVCache, RotatingKVCache, ArraysCache, alone or beside the others"
    )


def _is_native(module: nn.Module) -> bool:
    """Whether it is a GatedDeltaNet, or was one until an engine took its model."""
    return type(module) in NATIVE or isinstance(module, GatedDelta)


def _modules(layers: Any, number: int) -> list[nn.Module]:
    if number >= len(layers) or layers[number] is None:
        return []
    modules: list[nn.Module] = layers[number].modules()
    return modules
