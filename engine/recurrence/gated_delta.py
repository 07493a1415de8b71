"""GatedDeltaNet over slots: what one loaded model's gated-delta layers become.

Each instance's class is exchanged (parameters kept) for one that reads its state through a
DeltaWindow and leaves there what the round may keep: the state at each stop, and for drafts the
inputs of the recurrence, so that accepting some of them is a matter of folding records in.
With the loop form the outputs equal mlx-lm's bitwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.gated_delta import compute_g, normalize_qk

from ..slots import SlotArray, Slots
from .segments import Recurrence, Segments

RECORDS = ("k", "v", "g", "beta")


class DeltaWindow:
    """One gated-delta layer's share of a batch: what its module is given as ``cache``.

    ``history`` (rows, taps - 1, channels) and ``state`` stand at the windows' starts.
    """

    lengths = None  # read by mlx-lm's mask helpers

    def __init__(
        self, history: mx.array, state: mx.array, segments: Segments, recurrence: Recurrence
    ) -> None:
        self.history = history
        self.state = state
        self.segments = segments
        self.recurrence = recurrence
        self.states: list[mx.array] = []  # at every stop of ``segments``
        self.conv_input: mx.array | None = None  # (rows, taps - 1 + width, channels)
        self.records: dict[str, mx.array] = {}

    def make_mask(self, _length: int) -> None:
        """Padding is dealt with by the segments."""

    def history_at(self, stop: int) -> mx.array:
        """The convolution's inputs before stop number ``stop``, (rows, taps - 1, channels)."""
        assert self.conv_input is not None
        return take_history(self.conv_input, self.segments.stops[stop], self.history.shape[1])


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Rows first to end - 1 of a batch, which run on a stream of their own."""

    stream: mx.Stream
    first: int
    end: int
    window: DeltaWindow


class DividedWindow:
    """A batch whose rows are divided among streams between the projections."""

    lengths = None  # read by mlx-lm's mask helpers

    def __init__(self, parts: Sequence[WindowPart]) -> None:
        self.parts = parts

    def make_mask(self, _length: int) -> None:
        """Padding is dealt with by the segments."""


class FusedWindow(ABC):
    """What a module is given as ``cache`` where one call does all between its projections."""

    lengths = None  # read by mlx-lm's mask helpers

    def make_mask(self, _length: int) -> None:  # noqa: B027  # there is never one
        """Padding is dealt with inside."""

    @abstractmethod
    def run(self, module: Any, qkv: mx.array, z: mx.array, b: mx.array, a: mx.array) -> mx.array:
        """Return the normed output, (rows, width, value heads, value dim).

        ``qkv`` is the convolution's input (rows, width, channels), ``z`` the output gate, shaped
        like the result, ``b`` and ``a`` (rows, width, value heads) come before their gates.
        """


def take_history(inputs: mx.array, ends: Any, taps: int) -> mx.array:
    """inputs[b, ends[b] : ends[b] + taps] for (rows, time, channels)."""
    positions = mx.array(ends)[:, None] + mx.arange(taps)
    index = mx.broadcast_to(positions[..., None], (*positions.shape, inputs.shape[-1]))
    return mx.take_along_axis(inputs, index, axis=1)


class GatedDelta(nn.Module):
    """The part that all families share; a family says how it projects its inputs."""

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Return the convolution's input, the output gate z, and b and a before their gates."""
        raise NotImplementedError

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Run the windows of ``cache`` over ``x``, (rows, width, hidden)."""
        if isinstance(cache, FusedWindow):
            normed = cache.run(self, *self.project(x))
            fused: mx.array = self.out_proj(normed.reshape(*x.shape[:2], -1))
            return fused
        if not isinstance(cache, (DeltaWindow, DividedWindow)):  # somebody uses mlx-lm's model
            out: mx.array = super().__call__(x, mask, cache)
            return out
        projected = self.project(x)
        if isinstance(cache, DeltaWindow):
            normed = self._recur(cache, *projected)
        else:
            normed = self._recur_divided(cache, projected)
        output: mx.array = self.out_proj(normed)
        return output

    def _recur_divided(self, cache: DividedWindow, projected: Sequence[mx.array]) -> mx.array:
        outputs = []
        for part in cache.parts:
            with mx.stream(part.stream):
                mine = [array[part.first : part.end] for array in projected]
                outputs.append(self._recur(part.window, *mine))
        return mx.concatenate(outputs)

    def _recur(
        self, cache: DeltaWindow, qkv: mx.array, z: mx.array, b: mx.array, a: mx.array
    ) -> mx.array:
        """Everything between the projections; (rows, width, value heads * value dim)."""
        rows, width, _ = qkv.shape
        conv_input = mx.concatenate([cache.history, qkv], axis=1)
        mixed = nn.silu(self.conv1d(conv_input))
        q, k, v = mx.split(mixed, [self.key_dim, 2 * self.key_dim], axis=-1)
        q = q.reshape(rows, width, self.num_k_heads, self.head_k_dim)
        k = k.reshape(rows, width, self.num_k_heads, self.head_k_dim)
        v = v.reshape(rows, width, self.num_v_heads, self.head_v_dim)
        q, k = normalize_qk(q, k, inv_scale=self.head_k_dim**-0.5, eps=1e-6)
        g, beta = compute_g(self.A_log, a, self.dt_bias), mx.sigmoid(b)
        read, cache.states = cache.segments.run(cache.recurrence, (q, k, v, g, beta), cache.state)
        cache.conv_input = conv_input
        cache.records = {"k": k, "v": v, "g": g, "beta": beta}
        normed: mx.array = self.norm(read, z).reshape(rows, width, -1)
        return normed


class Qwen35GatedDelta(GatedDelta, qwen3_5.GatedDeltaNet):
    """Qwen3.5 and Qwen3.6: separate projections."""

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Return qkv, z, b and a of ``x``."""
        rows, width, _ = x.shape
        z = self.in_proj_z(x).reshape(rows, width, self.num_v_heads, self.head_v_dim)
        return self.in_proj_qkv(x), z, self.in_proj_b(x), self.in_proj_a(x)


class Qwen3NextGatedDelta(GatedDelta, qwen3_next.Qwen3NextGatedDeltaNet):
    """Qwen3-Next: two projections, interleaved by key head."""

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Return qkv, z, b and a of ``x``."""
        rows, width, _ = x.shape
        q, k, v, z, b, a = self.fix_query_key_value_ordering(
            self.in_proj_qkvz(x), self.in_proj_ba(x)
        )
        qkv = mx.concatenate([part.reshape(rows, width, -1) for part in (q, k, v)], axis=-1)
        return qkv, z, b, a


NATIVE: dict[type[nn.Module], type[GatedDelta]] = {
    qwen3_5.GatedDeltaNet: Qwen35GatedDelta,
    qwen3_next.Qwen3NextGatedDeltaNet: Qwen3NextGatedDelta,
}


def slot_layout(layer: nn.Module, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
    """What a slot keeps of ``layer``: state, convolution inputs, and ``max_drafts`` records."""
    taps = layer.conv_kernel_size - 1
    state = (layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    layout = {
        "state": SlotArray(state, mx.float32),
        "history": SlotArray((taps + max_drafts, layer.conv_dim), dtype),
    }
    if max_drafts:
        layout |= {
            "k": SlotArray((max_drafts, layer.num_k_heads, layer.head_k_dim), dtype),
            "v": SlotArray((max_drafts, layer.num_v_heads, layer.head_v_dim), dtype),
            "g": SlotArray((max_drafts, layer.num_v_heads), mx.float32),
            "beta": SlotArray((max_drafts, layer.num_v_heads), dtype),
        }
    return layout


def read_records(slots: Slots, index: Sequence[int], count: int) -> Sequence[mx.array]:
    """The first ``count`` recorded inputs of slots ``index``, as a recurrence takes them."""
    k, v, g, beta = (slots.read(name, index)[:, :count] for name in RECORDS)
    return k, k, v, g, beta  # the outputs of a fold are not wanted: any q will do
