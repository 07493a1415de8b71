"""The engine as a worker sees it: what ``engine.Engine`` offers, and what a fake one must."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class UsageLike(Protocol):
    """``engine.answer.Usage``."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, those of earlier runs included."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""

    @property
    def drafted_tokens(self) -> int:
        """Tokens that were drafted."""

    @property
    def accepted_tokens(self) -> int:
        """Drafts that were accepted."""


class LogprobLike(Protocol):
    """``engine.answer.TokenLogprob``."""

    @property
    def token_id(self) -> int:
        """The token."""

    @property
    def logprob(self) -> float:
        """Its log-probability, in nats."""

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens at its position."""


class DeltaLike(Protocol):
    """``engine.answer.Delta``."""

    @property
    def request_id(self) -> str:
        """The request."""

    @property
    def index(self) -> int:
        """Which of its samples."""

    @property
    def text(self) -> str:
        """What became readable."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What was generated."""

    @property
    def logprobs(self) -> Sequence[LogprobLike] | None:
        """One entry a token, if asked for."""

    @property
    def finish_reason(self) -> str | None:
        """Why the sample ended, in its last delta."""

    @property
    def usage(self) -> UsageLike | None:
        """In its last delta."""

    @property
    def error(self) -> str | None:
        """What went wrong, if the reason is "error"."""

    @property
    def prompt_logprobs(self) -> Sequence[LogprobLike | None] | None:
        """One entry a token of the prompt, in a sample's first delta, if asked for."""


class ServedEngine(Protocol):
    """The part of an engine that a worker uses, from one thread."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""

    def submit(
        self,
        prompt: Any,
        params: Any,
        *,
        request_id: str,
        tenant: str,
        emitted: Sequence[int],
    ) -> str:
        """Take a request; ValueError if it cannot run."""

    def step(self) -> Sequence[DeltaLike]:
        """Run one round."""

    def cancel(self, request_id: str) -> None:
        """End a request; its last delta comes from a later step."""

    def pause(self, request_id: str) -> None:
        """Give a request no more rounds until it is resumed."""

    def resume(self, request_id: str) -> None:
        """End a pause."""

    def stats(self) -> Any:
        """Return figures: a dataclass, or a mapping, of plain numbers."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, with what a worker has to say and know about it."""

    engine: ServedEngine
    make_params: Callable[[Mapping[str, Any]], Any]
    models: tuple[str, ...]
    rows: int  # sequences it decodes at a time
    capacity: int  # requests it wants to hold at once, running and waiting


EngineLoader = Callable[[], LoadedEngine]
"""Loads the engine; called on the thread that will use it."""
