"""What an engine gives back: deltas while a request runs, an answer when it has ended."""

from dataclasses import dataclass, field

from scheduler.request import FinishReason
from scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one sample, counted as tokens, never as rounds."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # prompt tokens whose K/V and state came from the prefix cache
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @classmethod
    def of(cls, sequence: Sequence) -> "Usage":
        """What a sequence has taken and given so far."""
        return cls(
            prompt_tokens=sequence.num_prompt,
            completion_tokens=sequence.num_generated,
            cached_tokens=sequence.num_cached,
            drafted_tokens=sequence.num_drafted,
            accepted_tokens=sequence.num_accepted,
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token, and of the ``top`` likeliest at its position, in nats."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one sample of one request gained in a step; at most one a step and sample.

    The last one of a sample carries ``finish_reason`` and ``usage``, and ``error`` if it failed.
    """

    request_id: str
    index: int  # which of the request's n samples
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # with a sample's first delta


@dataclass(slots=True)
class Answer:
    """A whole sample: the sum of its deltas."""

    request_id: str
    index: int
    seed: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None

    def add(self, delta: Delta) -> None:
        """Take in this sample's next delta."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *delta.logprobs]
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = list(delta.prompt_logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.usage = delta.usage
            self.error = delta.error
