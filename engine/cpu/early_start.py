"""Layers that begin to run as soon as they are built, while the host builds the next ones.

MLX runs nothing before it is asked to. Of a small model the host needs about as long to build a
step as the device to run it, so the two should not take turns.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import mlx.core as mx

from ..backend import Waiting
from ..forward import RunBody


class EarlyStart:
    """Of one model's layers, while an engine runs it; who else calls the model sees no change."""

    def __init__(self) -> None:
        self._is_running = False
        # MLX takes a few operations ahead of the device, then lets the host wait.
        self.waiting: Waiting = nullcontext

    def bind(self, layers: Sequence[Any]) -> None:
        """Give each of a model's ``layers``, one after the other, a class that starts it."""
        made: dict[type[Any], type[Any]] = {}
        for layer in layers:
            kind = type(layer)
            if kind not in made:
                made[kind] = self._starting(kind)
            layer.__class__ = made[kind]

    def around(self, run: RunBody) -> RunBody:
        """Return ``run``, but that the layers start early."""

        def run_body(tokens: mx.array, caches: list[Any]) -> mx.array:
            self._is_running = True
            try:
                return run(tokens, caches)
            finally:
                self._is_running = False

        return run_body

    def _starting(self, kind: type[Any]) -> type[Any]:
        def call(layer: Any, *args: Any, **choices: Any) -> Any:
            output = kind.__call__(layer, *args, **choices)
            if self._is_running and isinstance(output, mx.array):
                start: Callable[..., None] = mx.async_eval  # mlx does not type it
                with self.waiting():
                    start(output)
            return output

        return type(f"Starting{kind.__name__}", (kind,), {"__call__": call})
