"""Whether a model runs rows that stand at different positions, tried without computing anything.

MLX builds graphs lazily and checks shapes while it builds them, so one call that is never
evaluated shows the places that need the cache's offset as a Python number. What would go wrong
without an error is listed by name.
"""

import traceback
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from .errors import ModelError

ROWS, LENGTH = 2, 3  # unequal, so that an offset per row cannot pass for one per position

# (module, class) -> cause; a test holds that each still exists in mlx-lm
SILENTLY_WRONG = {
    ("phi3small", "Attention"): "its block-sparse mask takes the newest key for the last one",
    ("minimax_m3_vl", "Attention"): "it takes the newest key for the last one",
}


class RaggedAttentionCache:
    """What an attention layer may ask of a cache here: row offsets, new keys, a mask."""

    def __init__(self) -> None:
        self.offset = mx.arange(ROWS)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return the new keys and values as if nothing had been cached."""
        return keys, values

    def make_mask(
        self, length: int, *, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Return a mask of the shape that ragged rows need: (rows, 1, length, length)."""
        return mx.ones((ROWS, 1, length, length), dtype=mx.bool_)


def refuse_if_not_ragged(model: Any, model_type: str) -> None:
    """Raise ModelError with the cause if ``model`` cannot run rows at different positions."""
    for _, module in model.named_modules():
        kind = type(module)
        cause = SILENTLY_WRONG.get((kind.__module__.rpartition(".")[2], kind.__name__))
        if cause is not None:
            raise ModelError(f"model_type {model_type!r} cannot be batched: {cause}")
    caches = [_ragged(cache, model_type) for cache in make_prompt_cache(model)]
    try:
        model(mx.zeros((ROWS, LENGTH), dtype=mx.int32), cache=caches)
    except Exception as error:
        raise ModelError(
            f"model_type {model_type!r} cannot be batched: {_place(error)} does not run with one "
            f"cache offset per row ({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from error


def _ragged(cache: Any, model_type: str) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_ragged(part, model_type) for part in cache.caches))  # type: ignore[no-untyped-call]
    if isinstance(cache, ArraysCache):
        return cache
    if type(cache) in (KVCache, RotatingKVCache):
        return RaggedAttentionCache()
    raise ModelError(
        f"model_type {model_type!r} keeps its state in a {type(cache).__name__}; "
        "only attention K/V and recurrent arrays are supported"
    )


def _place(error: Exception) -> str:
    """Return the innermost function of mlx-lm in which ``error`` arose."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("mlx_lm."):
            return f"{frame.f_code.co_qualname} of {module}"
    return "the model"
