"""What gated-delta kernels take, and the launch for short windows (others: delta_prompt.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from ..slots import SlotArray, Slots
from .delta_columns import Projections
from .device import MULTIPROCESSORS, on_device
from .source import Kernel, Template

MAX_WIDTH = 9  # tokens of a window that runs in one launch
THREADS = 256
MAX_STATE = 24 * 32 * 32  # numbers of a head's state that 256 threads hold in registers
SHARED_MEMORY = 228 * 1024  # of a multiprocessor
SOURCES = ("warp.cuh", "delta_rule.cuh")
POOLS = ("state", "history", "keys", "deltas", "decays")
WEIGHTS = ("convolution", "decay_rates", "dt_bias", "norm", "epsilon")

SETUP = """
  using S = DeltaShape<T, HK, HV, DK, DV, TAPS, DRAFTS>;
  const DeltaPools<S> pools{
      const_cast<float*>(state), const_cast<T*>(history), const_cast<float*>(keys),
      const_cast<float*>(deltas), const_cast<float*>(decays)};
"""
SET_WEIGHTS = """
  const DeltaWeights weights{convolution, decay_rates, dt_bias, norm, epsilon[0]};
"""
WINDOW = f"""{SETUP}{SET_WEIGHTS}
  delta_window<S, WIDTH>({{
      {{mixed, mixed_strides[0], mixed_strides[1]}}, {{gate, gate_strides[0], gate_strides[1]}},
      {{b, b_strides[0], b_strides[1]}}, {{a, a_strides[0], a_strides[1]}},
      columns, weights, rows, rows_shape[0], rows_shape[1], mixed_shape[1], pools, out}});
"""


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of one gated-delta layer."""

    dtype: mx.Dtype
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # of the convolution
    max_drafts: int

    @classmethod
    def of(cls, module: Any, max_drafts: int, dtype: mx.Dtype) -> "DeltaShape":
        """Read them off a GatedDeltaNet."""
        return cls(
            dtype,
            module.num_k_heads,
            module.num_v_heads,
            module.head_k_dim,
            module.head_v_dim,
            module.conv_kernel_size,
            max_drafts,
        )

    @property
    def heads(self) -> tuple[int, int, int, int]:
        """Key heads, value heads, key dim, value dim."""
        return self.num_key_heads, self.num_value_heads, self.key_dim, self.value_dim

    @property
    def channels(self) -> int:
        """The convolution's channels of one value head and its key head."""
        return 2 * self.key_dim + self.value_dim

    def why_not(self) -> str | None:
        """Say why the kernels do not take such a layer; None if they do."""
        if self.dtype not in (mx.bfloat16, mx.float32):
            return f"type {str(self.dtype).removeprefix('mlx.core.')}"
        dims = (self.key_dim, self.value_dim)
        if self.key_dim % 32 or self.value_dim % 32 or self.key_dim * self.value_dim > MAX_STATE:
            return f"heads of {dims[0]} x {dims[1]}, not multiples of 32 with at most {MAX_STATE}"
        return None

    def layout(self) -> dict[str, SlotArray]:
        """What a slot keeps; see kernels/delta_rule.cuh."""
        heads, drafts = self.num_value_heads, self.max_drafts
        kept = {
            "state": SlotArray((heads, self.value_dim, self.key_dim), mx.float32),
            "history": SlotArray((heads, self.taps - 1 + drafts, self.channels), self.dtype),
        }
        if drafts:
            kept |= {
                "keys": SlotArray((heads, drafts, self.key_dim), mx.float32),
                "deltas": SlotArray((heads, drafts, self.value_dim), mx.float32),
                "decays": SlotArray((heads, drafts), mx.float32),
            }
        return kept

    def template(self) -> Template:
        """The sizes as the kernels name them."""
        return [
            ("T", self.dtype),
            ("HK", self.num_key_heads),
            ("HV", self.num_value_heads),
            ("DK", self.key_dim),
            ("DV", self.value_dim),
            ("TAPS", self.taps),
            ("DRAFTS", self.max_drafts),
        ]


def layer_weights(module: Any) -> dict[str, mx.array]:
    """What the kernels take of a GatedDeltaNet's parameters, in float32."""
    return {
        "convolution": mx.contiguous(module.conv1d.weight[..., 0].astype(mx.float32)),
        "decay_rates": mx.exp(module.A_log.astype(mx.float32)),
        "dt_bias": module.dt_bias.astype(mx.float32),
        "norm": module.norm.weight.astype(mx.float32),
        "epsilon": on_device(mx.array([module.norm.eps], mx.float32)),
    }


def kernel_inputs(
    slots: Slots,
    weights: Mapping[str, mx.array],
    rows: mx.array,
    projections: Projections,
) -> list[mx.array]:
    """What every kernel of a window takes, in its order; ``run_window`` says what they are."""
    parameters = (weights[name] for name in WEIGHTS)
    # without records any array stands in their place
    pools = (slots.pools.get(name, slots.pools["state"]) for name in POOLS)
    return [*projections, *parameters, rows, *pools]


def run_window(
    shape: DeltaShape,
    slots: Slots,
    weights: Mapping[str, mx.array],
    rows: mx.array,
    projections: Projections,
    *,
    joined: bool = False,
) -> mx.array:
    """Run windows of at most MAX_WIDTH tokens; states, histories and records change in place.

    ``weights`` are those of ``layer_weights``; ``rows`` (rows, 7 + 2 captures) are described in
    kernels/delta_rule.cuh. Returns the normed output, (rows, width, value heads, value dim), or
    ``joined`` (rows, width, numbers of all heads), which is what a reader of the slots must depend
    on.
    """
    count, width = projections.mixed.shape[:2]
    kernel, blocks = _window_kernel(shape)
    heads = (shape.num_value_heads, shape.value_dim)
    return kernel(
        kernel_inputs(slots, weights, rows, projections),
        (shape.num_value_heads, min(count, max(1, blocks // shape.num_value_heads)), 1),
        [(count, width, heads[0] * heads[1]) if joined else (count, width, *heads)],
        [shape.dtype],
    )[0]


@cache
def _window_kernel(shape: DeltaShape) -> tuple[Kernel, int]:
    """The kernel and how many blocks of it run at once."""
    inputs = (shape.taps - 1 + MAX_WIDTH) * shape.channels + MAX_WIDTH * shape.value_dim
    floats = (
        shape.key_dim * shape.value_dim  # the state
        + MAX_WIDTH * (2 * shape.key_dim + 2 * shape.value_dim + 2)
        + shape.max_drafts * (shape.key_dim + shape.value_dim + 1)
    )
    shared_memory = 2 * inputs * shape.dtype.size + 4 * floats
    blocks = 2 if 2 * (shared_memory + 1024) <= SHARED_MEMORY else 1  # on a multiprocessor
    kernel = Kernel(
        "delta_window",
        (*SOURCES, "delta_window.cuh"),
        WINDOW,
        ("mixed", "gate", "a", "b", "columns", *WEIGHTS, "rows", *POOLS),
        ("out",),
        template=[*shape.template(), ("WIDTH", MAX_WIDTH)],
        threads=THREADS,
        blocks=blocks,
        shared_memory=shared_memory,
        contiguous=False,
    )
    return kernel, blocks * MULTIPROCESSORS
