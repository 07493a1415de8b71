"""What a gated-delta module is given as ``cache``: its layer's share of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import compute_g, normalize_qk

Alone = Callable[[mx.Stream], AbstractContextManager[None]]

L2_EPS = 1e-6  # of queries and keys, added to the sum of squares


class DeltaWindow(ABC):
    """One gated-delta layer's share of some rows of a batch."""

    lengths = None  # read by mlx-lm's mask helpers
    history: mx.array  # the convolution's inputs before the window, (rows, taps, channels)
    conv_input: mx.array | None = None  # with those of the window, (rows, taps + width, channels)

    def make_mask(self, _length: int) -> None:  # noqa: B027  # there is never one
        """Padding is dealt with inside."""

    def mix(self, module: Any, inputs: mx.array) -> mx.array:
        """SiLU of the module's depthwise convolution over (rows, taps + width, channels)."""
        mixed: mx.array = nn.silu(module.conv1d(inputs))
        return mixed

    def normalize(self, q: mx.array, k: mx.array, scale: float) -> tuple[mx.array, mx.array]:
        """Queries and keys (rows, width, key heads, dim) of length ``scale`` and 1."""
        normed: tuple[mx.array, mx.array] = normalize_qk(q, k, inv_scale=scale, eps=L2_EPS)
        return normed

    def between(self, module: Any, mixed: mx.array, b: mx.array, a: mx.array) -> mx.array:
        """What is read, (rows, width, value heads, dim), of the mixed channels and both gates."""
        rows, width, _ = mixed.shape
        q, k, v = mx.split(mixed, [module.key_dim, 2 * module.key_dim], axis=-1)
        q = q.reshape(rows, width, module.num_k_heads, module.head_k_dim)
        k = k.reshape(rows, width, module.num_k_heads, module.head_k_dim)
        v = v.reshape(rows, width, module.num_v_heads, module.head_v_dim)
        q, k = self.normalize(q, k, module.head_k_dim**-0.5)
        return self.recur((q, k, v, compute_g(module.A_log, a, module.dt_bias), mx.sigmoid(b)))

    @abstractmethod
    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Run the recurrence over q, k, v, g, beta (rows, width, ...); return what is read."""


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Rows of a batch, by number, which run on a stream of their own."""

    stream: mx.Stream
    rows: Sequence[int]
    window: DeltaWindow

    def of(self, array: mx.array) -> mx.array:
        """The part's rows of ``array``."""
        first, end = self.rows[0], self.rows[-1] + 1
        if list(self.rows) == list(range(first, end)):
            return array[first:end]
        return mx.take(array, mx.array(list(self.rows)), axis=0)


class DividedWindow:
    """A batch whose rows are divided among streams between the projections."""

    lengths = None  # read by mlx-lm's mask helpers

    def __init__(self, parts: Sequence[WindowPart], alone: Alone | None = None) -> None:
        """``alone``: in what it returns the projections of a part run on its stream as well."""
        self.parts = parts
        self.alone = alone
        self.order = [row for part in parts for row in part.rows]

    def make_mask(self, _length: int) -> None:
        """Padding is dealt with inside."""

    def join(self, outputs: Sequence[mx.array]) -> mx.array:
        """The outputs of all parts, in the batch's order."""
        joined = outputs[0] if len(outputs) == 1 else mx.concatenate(list(outputs))
        places = sorted(range(len(self.order)), key=self.order.__getitem__)
        if places == list(range(len(places))):
            return joined
        return mx.take(joined, mx.array(places), axis=0)


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
