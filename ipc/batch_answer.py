"""The answer to one request of a batch, put together from the deltas of its samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.answer import Delta, TokenLogprob, Usage

    from .batch_request import BatchRequest


@dataclass(slots=True)
class Choice:
    """One sample, so far."""

    index: int
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list["TokenLogprob"] | None = None
    finish_reason: str | None = None
    usage: "Usage | None" = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The text of the sample."""
        return "".join(self.pieces)


@dataclass(slots=True)
class BatchAnswer:
    """What one request has gained; complete when every sample has a finish reason."""

    request: "BatchRequest"
    request_id: str
    seed: int | None
    choices: list[Choice]
    prompt_logprobs: "Sequence[TokenLogprob | None] | None" = None

    def add(self, delta: "Delta") -> None:
        """Take what one sample gained in a step."""
        choice = self.choices[delta.index]
        choice.pieces.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            choice.logprobs = [*(choice.logprobs or ()), *delta.logprobs]
        if delta.prompt_logprobs is not None:  # the same from every sample
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.usage = delta.usage
            choice.error = delta.error

    @property
    def complete(self) -> bool:
        """Whether every sample has ended, or one has failed."""
        ended = all(choice.finish_reason is not None for choice in self.choices)
        return ended or self.error is not None

    @property
    def error(self) -> str | None:
        """Why the request failed, if a sample of it did."""
        for choice in self.choices:
            if choice.finish_reason == "error" or choice.error is not None:
                return choice.error or "the engine gave no reason"
        return None

    def usage(self) -> dict[str, int]:
        """Return the request's tokens: the prompt counted once, the rest summed over samples."""
        usages = [choice.usage for choice in self.choices if choice.usage is not None]
        first = usages[0] if usages else None
        return {
            "prompt_tokens": first.prompt_tokens if first else 0,
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "cached_tokens": first.cached_tokens if first else 0,
            "drafted_tokens": sum(usage.drafted_tokens for usage in usages),
            "accepted_tokens": sum(usage.accepted_tokens for usage in usages),
        }
