"""One GatedDeltaNet over two layers, the portable one and a backend's, stepped side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.qwen3_5 import GatedDeltaNet, TextModelArgs

from engine.backend import Backend
from engine.batch import Batch, Window
from engine.layers import Layer
from engine.recurrence.forms import LOOP
from engine.store import bind_to_slots
from engine.view import BatchView
from scheduler.round import Capture, Row

HIDDEN = 48


@dataclass
class Standing:
    """Where one sequence stands."""

    slot: int
    position: int = 0
    fold: int = 0


@dataclass
class Step:
    """What one sequence runs in a round."""

    number: int  # of the sequence
    certain: int
    drafts: int = 0
    captures: Sequence[Capture] = field(default_factory=tuple)


def make_module(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, dtype: mx.Dtype
) -> GatedDeltaNet:
    """Return a layer of random weights, bound to slots."""
    mx.random.seed(3)
    module = GatedDeltaNet(
        TextModelArgs(
            hidden_size=HIDDEN,
            linear_num_key_heads=key_heads,
            linear_num_value_heads=value_heads,
            linear_key_head_dim=key_dim,
            linear_value_head_dim=value_dim,
            rms_norm_eps=1e-6,
        )
    )
    module.norm.weight = 1 + 0.1 * mx.random.normal((value_dim,))
    module.dt_bias = mx.random.normal((value_heads,))

    def convert(x: mx.array) -> mx.array:
        return (3 * x if x.ndim == 2 else x).astype(dtype)

    module.update(tree_map(convert, module.parameters()))
    mx.eval(module.parameters())
    bind_to_slots(module)
    return module


class DeltaPair:
    """Sequences over both layers; ``layers[0]`` is portable, ``layers[1]`` the backend's."""

    def __init__(
        self,
        module: GatedDeltaNet,
        backend: Backend,
        dtype: mx.Dtype,
        max_drafts: int,
        slots: Sequence[int],
    ) -> None:
        self.module = module
        self.dtype = dtype
        self.sequences = [Standing(slot) for slot in slots]
        num_slots = 12
        self.layers = [
            backend.delta_layer(module, num_slots, max_drafts, dtype, LOOP)
            for backend in (Backend(), backend)
        ]
        for layer in self.layers:  # full of what shows if it is read before it is written
            for name, pool in layer.slots.pools.items():
                layer.slots.pools[name] = mx.full(pool.shape, 7.5, pool.dtype)
            mx.eval(layer.arrays)
        self.random = np.random.default_rng(0)

    def view(self, steps: Sequence[Step]) -> BatchView:
        """The batch of ``steps``, in their order."""
        windows = []
        for step in steps:
            at = self.sequences[step.number]
            row = Row(
                step.number,
                (1,) * step.certain,
                at.position,
                tuple(range(1, 2 + (at.position + step.certain + step.drafts) // 16)),
                slot=at.slot,
                fold=at.fold,
                num_drafts=step.drafts,
                captures=tuple(step.captures),
            )
            windows.append(Window(row, (1,) * step.drafts))
        return BatchView(Batch(windows, 16, keep_order=True))

    def inputs(self, view: BatchView) -> mx.array:
        """Random hidden states for ``view``."""
        shape = (view.batch.size, view.batch.width, HIDDEN)
        return mx.array(self.random.standard_normal(shape).astype(np.float32)).astype(self.dtype)

    def run_one(self, layer: Layer, view: BatchView, x: mx.array) -> mx.array:
        """Run the module over one of the layers."""
        cache = layer.open(view)
        out = self.module(x, cache=cache)
        mx.eval(out, layer.pending(cache))
        mx.eval(layer.store(view, cache))
        return out

    def run_kernels(self, view: BatchView, projected: Sequence[mx.array]) -> mx.array:
        """Run the kernels alone over projections; return the normed output."""
        layer = self.layers[1]
        cache = layer.open(view)
        out = cache.run(self.module, *projected)
        mx.eval(out, layer.pending(cache))
        return out

    def run(self, steps: Sequence[Step]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Run a round over both; return each row's (portable, kernel) outputs without padding."""
        view = self.view(steps)
        x = self.inputs(view)
        outs = [np.array(self.run_one(layer, view, x).astype(mx.float32)) for layer in self.layers]
        for step in steps:
            at = self.sequences[step.number]
            at.position += step.certain
            at.fold = 0
        lengths = view.batch.lengths
        return [tuple(out[row, : lengths[row]] for out in outs) for row in range(view.batch.size)]

    def accept(self, number: int, count: int) -> None:
        """Keep the first ``count`` drafts of a sequence's last window."""
        self.sequences[number].position += count
        self.sequences[number].fold = count

    def copy(self, source: int, target: int) -> None:
        """Copy a slot in both layers."""
        for layer in self.layers:
            mx.eval(layer.copy_slot(source, target))

    def states(self, slots: Sequence[int]) -> list[np.ndarray]:
        """The states in ``slots``, (slots, heads, DV, DK), of both layers."""
        mx.eval([layer.arrays for layer in self.layers])  # settles what is newer elsewhere
        return [np.array(layer.slots.pools["state"])[list(slots)] for layer in self.layers]

    def histories(self, slot: int) -> list[np.ndarray]:
        """The convolution's inputs before the state in ``slot``, (taps - 1, channels), of both."""
        portable, ours = (
            np.array(layer.slots.pools["history"].astype(mx.float32))[slot] for layer in self.layers
        )
        shape = getattr(self.layers[1], "shape", None)
        if shape is None:  # laid out alike
            taps = self.layers[1].taps
            return [portable[:taps], ours[:taps]]
        repeats, keys = shape.num_value_heads // shape.num_key_heads, shape.key_dim
        taps = shape.taps - 1
        ours = ours[:, :taps]
        parts = [
            ours[::repeats, :, :keys],
            ours[::repeats, :, keys : 2 * keys],
            ours[..., 2 * keys :],
        ]
        flat = [part.transpose(1, 0, 2).reshape(taps, -1) for part in parts]
        return [portable[:taps], np.concatenate(flat, axis=1)]
