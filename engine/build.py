"""From a model's name and options to the parts of an engine: weights, memory, executor."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.config import SchedulerConfig
from scheduler.depth import DepthPolicy, FixedDepth, NoDrafts

from . import blas
from .backend import Backend
from .drafting.plan import PlanDrafter, plan_drafter
from .executor import Executor
from .forward import Forward
from .loading import LoadedModel, load
from .memory import MemoryPlan, plan_memory, probe_memory
from .options import AUTO_DEPTH, EngineOptions
from .prepared import prepare

logger = logging.getLogger("octavo")

DEFAULT_CONTEXT = 32_768  # for models whose config does not say
CPU_PROMPT_TOKENS = 512
GPU_PROMPT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Parts:
    """What an Engine is made of."""

    options: EngineOptions
    loaded: LoadedModel
    executor: Executor
    scheduler_config: SchedulerConfig
    memory: MemoryPlan
    bytes_per_block: int
    bytes_per_slot: int
    dtype: mx.Dtype
    backend: Backend

    def make_depth_policy(self) -> DepthPolicy:
        """Return what decides how many drafts each row carries."""
        depth, drafter = self.options.speculate, self.executor.drafter
        if drafter is None or depth == "off":
            return NoDrafts()
        if depth == "auto":
            return AdaptiveDepth(AUTO_DEPTH, drafts_are_free=drafter.is_free)
        return FixedDepth(int(depth))

    @property
    def runs_ahead(self) -> bool:
        """Whether rows of the next round are launched before a round's tokens are read."""
        wanted = self.options.async_scheduling
        return self.executor.in_order if wanted is None else wanted

    def describe(self) -> Mapping[str, Any]:
        """What was loaded, in plain values, for `octavo inspect`."""
        config, store = self.scheduler_config, self.executor.store
        used = blas.current()
        return {
            "model": self.loaded.name,
            "path": str(self.loaded.path),
            "model_type": self.loaded.model_type,
            "vocabulary": self.loaded.vocab_size,
            "dtype": str(self.dtype).removeprefix("mlx.core."),
            "device": str(mx.default_device()),
            "device_name": _device_name(),
            "blas": None if used is None else str(used),
            "exact": self.options.exact,
            "backend": self.backend.name,
            "async_scheduling": self.runs_ahead,
            "max_context": config.max_context,
            "max_rows": config.max_rows,
            "block_size": config.block_size,
            "blocks": config.num_blocks,
            "slots": config.num_slots,
            "bytes_per_block": self.bytes_per_block,
            "bytes_per_slot": self.bytes_per_slot,
            "drafter": None if self.executor.drafter is None else self.executor.drafter.name,
            "speculate": self.options.speculate,
            "layers": [layer.kind for layer in store.layers],
        }


def build(model: str, **choices: Any) -> Parts:
    """Load ``model`` and allocate its memory; ``choices`` are fields of EngineOptions."""
    options = EngineOptions(**choices)
    return build_parts(load(model, dtype=options.dtype), options)


def build_parts(
    loaded: LoadedModel, options: EngineOptions, plan: PlanDrafter = plan_drafter
) -> Parts:
    """Find out what the layers of a loaded model keep, try it out, and allocate its memory.

    ``plan`` says which drafter there is to be.
    """
    forward = Forward(loaded.model)
    planned = plan(loaded, options, forward)
    max_drafts = options.max_drafts if planned is not None else 0
    ready = prepare(loaded, options, forward, max_drafts, must_be_exact=options.exact)
    per_block, per_slot, beside = ready.bytes_per_block, ready.bytes_per_slot, 0
    if planned is not None:
        per_block += planned.bytes_per_block
        per_slot += planned.bytes_per_slot
        beside = planned.num_bytes
    memory = _plan_memory(options, loaded, per_block, per_slot, beside)
    store = ready.make_store(memory.num_blocks, memory.num_slots)
    drafter = planned.make(memory.num_blocks, memory.num_slots) if planned is not None else None
    forward.run_body = ready.backend.compile_body(forward.run_body, store.layers)
    forward.num_calls = 0
    in_order = ready.backend.runs_in_order(store.layers)
    if drafter is not None:
        drafter.in_order = in_order
    executor = Executor(forward, store, options.block_size, drafter, in_order=in_order)
    ready.backend.charge_waiting(lambda: executor.phases.during("device"))
    config = _scheduler_config(
        options,
        loaded,
        memory,
        uses_slots=per_slot > 0,
        finds_groups=ready.reads_groups_once,
        # graphs make windows of one length; others take the host longer than the device
        even_windows=in_order and drafter is not None and not drafter.is_free,
    )
    return Parts(
        options,
        loaded,
        executor,
        config,
        memory,
        per_block,
        per_slot,
        forward.dtype,
        ready.backend,
    )


def _device_name() -> str | None:
    """Return the GPU's name as MLX tells it; None on a CPU."""
    if mx.default_device() == mx.Device(mx.cpu):
        return None
    info = mx.device_info()
    return next((str(info[key]) for key in ("device_name", "architecture") if key in info), None)


def _max_context(options: EngineOptions, loaded: LoadedModel) -> int:
    """Never more than the model's own."""
    own = loaded.max_context or DEFAULT_CONTEXT
    return own if options.max_context is None else min(own, options.max_context)


def _plan_memory(
    options: EngineOptions,
    loaded: LoadedModel,
    bytes_per_block: int,
    bytes_per_slot: int,
    bytes_beside: int,
) -> MemoryPlan:
    return plan_memory(
        probe_memory().less(bytes_beside),
        bytes_per_block=bytes_per_block,
        bytes_per_slot=bytes_per_slot,
        block_size=options.block_size,
        max_rows=options.max_rows,
        max_context=_max_context(options, loaded),
        num_blocks=options.num_blocks,
        max_checkpoint_bytes=options.max_checkpoint_bytes,
    )


def _scheduler_config(
    options: EngineOptions,
    loaded: LoadedModel,
    memory: MemoryPlan,
    *,
    uses_slots: bool,
    finds_groups: bool,
    even_windows: bool,
) -> SchedulerConfig:
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    prompt_tokens = options.prompt_tokens_per_round
    if prompt_tokens is None:
        prompt_tokens = GPU_PROMPT_TOKENS if on_gpu else CPU_PROMPT_TOKENS
    return SchedulerConfig(
        num_blocks=memory.num_blocks,
        block_size=options.block_size,
        num_slots=memory.num_slots,
        uses_slots=uses_slots,
        max_rows=options.max_rows,
        prompt_tokens_per_round=max(prompt_tokens, options.block_size),
        max_context=_max_context(options, loaded),
        prefix_cache=options.prefix_cache,
        finds_groups=finds_groups,
        even_windows=even_windows,
        model_identity=str(loaded.path),
        check=options.check,
    )
