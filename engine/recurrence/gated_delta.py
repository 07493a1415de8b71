"""GatedDeltaNet over slots: what one loaded model's gated-delta layers become.

Each instance's class is exchanged (parameters kept) for one that runs the recurrence through a
DeltaWindow, which leaves behind what the round may keep.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3_5, qwen3_next

from .windows import Alone, DeltaWindow, DividedWindow, FusedWindow


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
        if isinstance(cache, DividedWindow) and cache.alone is not None:
            return self._run_apart(cache, cache.alone, x)
        projected = self.project(x)
        if isinstance(cache, DeltaWindow):
            normed = self._recur(cache, *projected)
        else:
            normed = self._recur_divided(cache, projected)
        output: mx.array = self.out_proj(normed)
        return output

    def _run_apart(self, cache: DividedWindow, alone: Alone, x: mx.array) -> mx.array:
        """Everything, the projections of each part's rows too, on that part's stream."""
        outputs = []
        for part in cache.parts:
            with alone(part.stream):
                outputs.append(self.out_proj(self._recur(part.window, *self.project(part.of(x)))))
        return cache.join(outputs)

    def _recur_divided(self, cache: DividedWindow, projected: Sequence[mx.array]) -> mx.array:
        outputs = []
        for part in cache.parts:
            with mx.stream(part.stream):
                outputs.append(self._recur(part.window, *map(part.of, projected)))
        return cache.join(outputs)

    def _recur(
        self, cache: DeltaWindow, qkv: mx.array, z: mx.array, b: mx.array, a: mx.array
    ) -> mx.array:
        """Everything between the projections; (rows, width, value heads * value dim)."""
        rows, width, _ = qkv.shape
        conv_input = mx.concatenate([cache.history, qkv], axis=1)
        read = cache.between(self, cache.mix(self, conv_input), b, a)
        cache.conv_input = conv_input
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
