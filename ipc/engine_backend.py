"""A batch's backend that decodes in this process."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.errors import RequestError
from engine.sampling_params import SamplingParams

from .bad_request_error import BadRequestError
from .batch_request import Prompt

if TYPE_CHECKING:
    from engine import Engine
    from engine.answer import Delta


class EngineBackend:
    """An Engine, as a batch job sees it."""

    def __init__(self, engine: "Engine"):
        self._engine = engine

    @property
    def max_rows(self) -> int:
        """How many sequences the engine decodes at a time."""
        return self._engine.parts.scheduler_config.max_rows

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams) -> int | None:
        """Submit to the engine; BadRequestError with its reason if it refuses."""
        try:
            self._engine.submit(prompt, params, request_id=request_id)
        except RequestError as error:
            raise BadRequestError("refused", str(error)) from None
        return self._engine.seed_of(request_id)

    def step(self) -> "Sequence[Delta]":
        """Run one round."""
        return self._engine.step()

    def cancel(self, request_id: str) -> None:
        """Cancel in the engine."""
        self._engine.cancel(request_id)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token."""
        return str(self._engine.tokenizer.decode([token_id]))

    def figures(self) -> Mapping[str, float]:
        """Return what only the engine knows."""
        stats = self._engine.stats()
        return {
            "mean_batch_width": stats.mean_batch_width,
            "peak_memory_bytes": stats.peak_memory_bytes,
        }
