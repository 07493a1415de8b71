"""A loaded model's forward pass, split where the engine needs it: hidden states, then logits.

A prompt chunk wants the logits of one position in hundreds; the vocabulary product of the others
would cost more than the rest of the model. mlx-lm's families share one layout (``model`` and a head
beside it); whether a given model is the sum of those two parts is tried out at load, bitwise.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
from mlx import nn

RunBody = Callable[[mx.array, list[Any]], mx.array]
"""Token ids (rows, width) and a cache for each layer -> hidden states (rows, width, hidden)."""


@runtime_checkable
class Undoable(Protocol):
    """A body that keeps something of its last run for the next one."""

    def undo(self) -> None:
        """A run failed: what it left must never be evaluated."""
        ...


class Forward:
    """Calls a model over given caches. A backend may exchange ``run_body`` for its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        text: Any = getattr(model, "language_model", model)
        self.body: Any = getattr(text, "model", None)
        self.head: Any = getattr(text, "lm_head", None)
        if self.head is None:
            has_head = hasattr(getattr(self.body, "embed_tokens", None), "as_linear")
            self.head = self._multiply_by_embedding if has_head else None
        self.is_split = self._is_sum_of_parts()
        hidden = self._run(mx.array([[1]]))
        self.dtype, self.hidden_size = hidden.dtype, hidden.shape[-1]
        self.run_body: RunBody = lambda tokens, caches: self._run(tokens, cache=caches)
        self.num_calls = 0  # forward passes run, for tests and statistics

    def _multiply_by_embedding(self, hidden: mx.array) -> mx.array:
        """Look the method up at each call: a backend may exchange the embedding's class."""
        out: mx.array = self.body.embed_tokens.as_linear(hidden)
        return out

    def _is_sum_of_parts(self) -> bool:
        if self.body is None or self.head is None:
            return False
        tokens = mx.array([[1, 2, 3]])
        try:
            parts, whole = self.head(self.body(tokens)), self.model(tokens)
            return bool(mx.array_equal(parts, whole))
        except (TypeError, ValueError, AttributeError):
            return False

    def hidden(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
        """Return (rows, width, hidden) after the final norm; logits where the model has no seam."""
        self.num_calls += 1
        return self.run_body(tokens, list(caches))

    def undo(self) -> None:
        """A pass failed: forget what it left, which must never be evaluated."""
        if isinstance(self.run_body, Undoable):
            self.run_body.undo()

    def _run(self, tokens: mx.array, **caches: Any) -> mx.array:
        out: mx.array = (self.body if self.is_split else self.model)(tokens, **caches)
        return out

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings of token ids, (..., hidden)."""
        out: mx.array = self.body.embed_tokens(tokens)
        return out

    def logits(self, hidden: mx.array) -> mx.array:
        """Return (..., vocabulary) for hidden states of ``hidden()``."""
        if not self.is_split:
            return hidden
        out: mx.array = self.head(hidden)
        return out
