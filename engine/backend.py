"""Which layers an engine is made of: portable ones in MLX operations, or a device's own kernels."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx

from . import blas
from .attention.layer import AttentionLayer
from .cuda import device
from .forward import RunBody
from .layers import Layer
from .pages import PageShape
from .recurrence.delta_layer import DeltaLayer, slot_layout
from .recurrence.forms import RecurrenceForm
from .slots import SlotArray

Waiting = Callable[[], AbstractContextManager[None]]


class Backend:
    """Makes layers. This one's run on every device; others fall back on it, layer by layer."""

    name = "portable"
    reads_groups_once = False  # its attention heeds a round's groups: measured on CPUs only
    exact_dtype = mx.float32  # of weights, for exact mode
    widest: int | None = None  # certain tokens of a row that run at once
    attends_in_tiles = False  # attention of wide windows may round otherwise than MLX's own

    def attention_layer(
        self,
        shape: PageShape,
        num_blocks: int,
        block_size: int,
        *,
        window_size: int | None = None,
        gathers: bool = False,
        rotary_shift: int = 0,
    ) -> AttentionLayer:
        """Return a layer of K/V in pages; see AttentionLayer."""
        return AttentionLayer(
            shape,
            num_blocks,
            block_size,
            window_size=window_size,
            gathers=gathers,
            rotary_shift=rotary_shift,
            tiles=self.attends_in_tiles,
        )

    def runs_in_order(self, layers: Sequence[Layer]) -> bool:
        """Whether all that ``layers`` keep is written by kernels, in the order of their launches.

        A batch may then be launched before the one before it is done. MLX's own operations would
        copy whole pools for that.
        """
        return False

    def bind_products(self, model: Any) -> int:
        """Give modules of ``model`` that multiply a class of this backend; return how many."""
        used = blas.current()
        if used is not None and used.threads:
            blas.set_threads(used.threads)  # another backend may have left it one
        return 0

    def why_not_exact(self, model: Any) -> str | None:
        """Say what of ``model`` has rows that may depend on the batch; None if all may be exact.

        Trying it out has the last word.
        """
        return None

    def compile_body(self, run: RunBody, layers: Sequence[Layer]) -> RunBody:
        """Return what runs a model's body over caches of ``layers``: ``run``, or what is faster."""
        return run

    def charge_waiting(self, waiting: Waiting) -> None:
        """Do within ``waiting()`` what of a forward pass waits for the device while it is built."""

    def delta_layout(self, module: Any, max_drafts: int, dtype: mx.Dtype) -> dict[str, SlotArray]:
        """What a slot keeps of the gated-delta ``module``."""
        return slot_layout(module, max_drafts, dtype)

    def delta_layer(
        self, module: Any, num_slots: int, max_drafts: int, dtype: mx.Dtype, form: RecurrenceForm
    ) -> Layer:
        """Return a layer of recurrent state in slots for the gated-delta ``module``."""
        return DeltaLayer(module, num_slots, max_drafts, dtype, form)


def choose_backend(name: str, *, exact: bool, dtype: mx.Dtype = mx.float32) -> Backend:
    """Return the backend called ``name``; ``auto`` is the best that this device and mode have.

    ``dtype`` is that of the weights. Raises ValueError where the one asked for cannot run.
    """
    has_cuda = device.is_default()
    if name == "cuda" and not has_cuda:
        raise ValueError("backend='cuda' needs MLX's CUDA build and an NVIDIA GPU; try 'auto'")
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    if name == "cpu" and not on_cpu:
        raise ValueError("backend='cpu' is for computing on the CPU; try 'auto'")
    if name == "cpu" and exact:
        raise ValueError("exact=True is defined by MLX's own operations: use backend='portable'")
    if name == "cuda" and exact and dtype != mx.bfloat16:
        kind = str(dtype).removeprefix("mlx.core.")
        raise ValueError(f"exact=True with backend='cuda' needs bfloat16 weights, not {kind}")
    if name != "portable" and not exact and on_cpu:
        from .cpu.backend import CpuBackend

        return CpuBackend()
    if name == "portable" or not has_cuda or (exact and dtype != mx.bfloat16):
        return Backend()
    from .cuda.backend import CudaBackend

    return CudaBackend(exact=exact)
