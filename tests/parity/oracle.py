"""What mlx-lm itself says: its own generation and forward pass, one prompt at a time.

Stock caches, a model loaded by mlx-lm alone, greedy. Imports nothing of engine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import CacheList, make_prompt_cache
from mlx_lm.utils import load_model

Memory = list[list[np.ndarray]]  # arrays of each layer, with positions or state first axis dropped


class Oracle:
    """One model of mlx-lm's, asked again and again; what was asked before is remembered."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._said: dict[tuple[int, ...], list[int]] = {}
        self._memory: dict[tuple[int, ...], Memory] = {}

    @classmethod
    def load(cls, folder: Path) -> "Oracle":
        """Load a folder and make every floating-point weight float32."""
        model, _ = load_model(folder)

        def cast(weight: mx.array) -> mx.array:
            return weight.astype(mx.float32) if mx.issubdtype(weight.dtype, mx.floating) else weight

        model.update(tree_map(cast, model.parameters()))
        mx.eval(model.parameters())
        return cls(model)

    def tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first ``count`` tokens that greedy generation says after ``prompt``."""
        key = tuple(prompt)
        if len(self._said.get(key, ())) < count:
            steps = generate_step(mx.array(key), self.model, max_tokens=count)
            self._said[key] = [int(token) for token, _ in steps]
        return self._said[key][:count]

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of ``tokens``, from one forward pass over all of them."""
        return np.array(self.model(mx.array([list(tokens)]))[0, -1])

    def memory(self, tokens: Sequence[int]) -> Memory:
        """What mlx-lm's caches hold once ``tokens`` have run: K and V, or the state's arrays."""
        key = tuple(tokens)
        if key not in self._memory:
            caches = make_prompt_cache(self.model)
            mx.eval(self.model(mx.array([key]), cache=caches))
            self._memory[key] = [_contents(cache) for cache in caches]
        return self._memory[key]


def _contents(cache: Any) -> list[np.ndarray]:
    if isinstance(cache, CacheList):
        return [array for part in cache.caches for array in _contents(part)]
    if hasattr(cache, "offset"):
        return [np.array(array[0, :, : cache.offset]) for array in (cache.keys, cache.values)]
    return [np.array(array[0]) for array in cache.cache if array is not None]
