"""What a batch job needs of whatever decodes: an engine in this process, or a service."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.sampling_params import SamplingParams

from .batch_request import Prompt

if TYPE_CHECKING:
    from engine.answer import Delta


class BackendLostError(Exception):
    """Nothing can be decoded any more; the requests that run have no answer yet."""


class Backend(Protocol):
    """Takes requests, gives back deltas. Used from one thread."""

    @property
    def max_rows(self) -> int:
        """How many sequences it decodes at a time: a job keeps a few times as many submitted."""

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams) -> int | None:
        """Take a request and return its seed, if known.

        Raises BadRequestError if it cannot run; nothing else is disturbed.
        """

    def step(self) -> "Sequence[Delta]":
        """Return what the requests gained; waits a moment at most if nothing did.

        A delta that carries ``error`` ends its whole request. Raises BackendLostError.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request; harmless when it has ended."""

    def token_text(self, token_id: int) -> str:
        """Return the text of one token."""

    def figures(self) -> Mapping[str, float]:
        """Return figures of the summary that only it knows: mean_batch_width, peak_memory_bytes."""
