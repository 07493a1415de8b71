"""What each layer of a model keeps, and how a batch reads and writes it.

A layer opens a batch (making what the model's module is given as ``cache``), says which arrays must
be evaluated before anything is stored, and then stores what the round may keep. Attention writes
its pages inside the forward pass; a recurrent layer stores its states after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from .view import BatchView


class Layer(ABC):
    """One layer's memory."""

    kind: str  # printed by `octavo inspect`

    @abstractmethod
    def open(self, view: BatchView) -> Any:
        """Return what the layer's module is given as ``cache``."""

    def pending(self, cache: Any) -> list[mx.array]:
        """Arrays to evaluate, together with the logits, before ``store``."""
        return []

    def store(self, view: BatchView, cache: Any) -> list[mx.array]:
        """Keep what the round may keep; return arrays to evaluate."""
        return []

    def copy_block(self, source: int, target: int) -> list[mx.array]:
        """Copy a block; return arrays to evaluate."""
        return []

    def copy_slot(self, source: int, target: int) -> list[mx.array]:
        """Copy a slot; return arrays to evaluate."""
        return []

    def lend_slots(self, pairs: Mapping[int, int]) -> list[mx.array]:
        """Let targets begin with what sources (source: target) keep; return arrays to evaluate.

        As copying, but what a round has left where it was computed stays there.
        """
        return [a for source, target in pairs.items() for a in self.copy_slot(source, target)]

    @property
    @abstractmethod
    def arrays(self) -> list[mx.array]:
        """Everything the layer keeps."""
