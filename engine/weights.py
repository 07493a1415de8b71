"""Which number type a loaded model's weights get, and how they get it."""

import logging
import os
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_map_with_path
from mlx_lm.utils import dequantize_model

from .cgroup import memory_limit
from .errors import ModelError

logger = logging.getLogger(__name__)

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def choose_dtype(name: str | None) -> mx.Dtype | None:
    """Return the type that ``name`` asks for; None keeps what the checkpoint has.

    Unasked, a CPU gets float32: only float32 products use its BLAS, others are up to 100 times
    slower there.
    """
    if name is None:
        return mx.float32 if mx.default_device() == mx.Device(mx.cpu) else None
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def convert_weights(module: Module, dtype: str | None) -> None:
    """Give ``module``'s floating-point weights the chosen type, in place and without evaluating.

    Weights that the model wants in float32 (its ``cast_predicate``) keep theirs. Quantized layers
    keep their packed weights and get scales of the new type, except on a CPU that was asked for
    no type: there they become float32 matrices if those take at most half of the memory.
    """
    target = choose_dtype(dtype)
    if target is None:
        return
    may_cast = _cast_predicate(module) if target != mx.float32 else None

    def convert(path: str, weight: mx.array) -> mx.array:
        if not mx.issubdtype(weight.dtype, mx.floating) or (may_cast and not may_cast(path)):
            return weight
        return weight.astype(target)

    module.update(tree_map_with_path(convert, module.parameters()))
    quantized_bytes = _bytes_dequantized(module)
    if dtype is None and quantized_bytes:
        if quantized_bytes <= _memory_bytes() // 2:
            dequantize_model(module)
            logger.info(
                "quantized weights become float32 matrices (%.1f GiB), the faster form on a CPU",
                quantized_bytes / 2**30,
            )
        else:
            logger.warning(
                "quantized weights stay packed, which is slow on a CPU: as float32 they would "
                "take %.1f GiB, more than half of the memory that there is",
                quantized_bytes / 2**30,
            )
    logger.info("weights are %s", str(target).removeprefix("mlx.core."))


def _cast_predicate(module: Any) -> Callable[[str], bool] | None:
    inner = getattr(module, "language_model", None)  # composite models leave it to the text model
    return getattr(module, "cast_predicate", None) or getattr(inner, "cast_predicate", None)


def _bytes_dequantized(module: Module) -> int:
    return sum(
        part.weight.size * (32 // part.bits) * 4
        for _, part in module.named_modules()
        if hasattr(part, "bits") and hasattr(part, "scales")
    )


def _memory_bytes() -> int:
    """What this process may have: the machine's, or less in a control group with a limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return machine if limit is None else min(machine, limit)
