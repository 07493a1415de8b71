"""Reads what an engine keeps of one sequence: its pages by its block table, its slot's arrays."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from engine.attention.layer import AttentionLayer
from engine.engine import Engine
from engine.group_layer import GroupLayer
from engine.layers import Layer
from engine.recurrence.delta_layer import DeltaLayer
from engine.store import Store

Memory = list[list[np.ndarray]]  # arrays of each layer, as oracle.Memory


def read_sequence(engine: Engine, seq_id: int) -> Memory:
    """What the engine keeps of the computed tokens of a running sequence."""
    sequence = engine.scheduler.sequences[seq_id]
    store = engine.parts.executor.store
    return read_memory(store, list(sequence.blocks), sequence.slot, sequence.computed)


def read_memory(store: Store, blocks: Sequence[int], slot: int | None, length: int) -> Memory:
    """K and V of the first ``length`` positions of ``blocks``, and the arrays of ``slot``."""
    return [_read(layer, blocks, slot, length) for layer in store.layers]


def _read(layer: Layer, blocks: Sequence[int], slot: int | None, length: int) -> list[np.ndarray]:
    if isinstance(layer, GroupLayer):
        return [array for part in layer.layers for array in _read(part, blocks, slot, length)]
    if isinstance(layer, AttentionLayer):
        pages = [layer.pages.read_block(block) for block in blocks]
        pair = (mx.concatenate([page[half] for page in pages], axis=1) for half in (0, 1))
        return [np.array(array[:, :length]) for array in pair]
    assert slot is not None
    pools = layer.slots.pools
    if isinstance(layer, DeltaLayer):
        return [np.array(pools["history"][slot, : layer.taps]), np.array(pools["state"][slot])]
    return [np.array(pool[slot]) for pool in pools.values()]


def assert_same_memory(found: Memory, expected: Memory) -> None:
    """Fail, naming the layer, unless both hold bitwise the same."""
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(ours) == len(theirs)
        for which, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            np.testing.assert_array_equal(one, other, f"array {which} of layer {number}")
