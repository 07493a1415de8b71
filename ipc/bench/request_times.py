"""When one request of a run came, began and was answered."""

from dataclasses import dataclass, field

from engine.answer import Delta, Usage


@dataclass(slots=True)
class RequestTimes:
    """Moments on the run's clock, in seconds.

    ``arrived`` is when the user wanted to ask, not when the engine was free to listen: a wait that
    the load itself causes counts.
    """

    arrived: float
    group: str = ""
    begun: float | None = None  # the step of its first round
    first: float | None = None  # its first token was there
    last: float | None = None  # likewise
    gaps: list[float] = field(default_factory=list)  # from each step that gained tokens to the next
    num_tokens: int = 0
    num_first: int = 0  # tokens of its first step
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None

    def add(self, delta: Delta, now: float) -> None:
        """Take in what a step that ended at ``now`` gained."""
        if delta.token_ids:
            if self.last is None:
                self.first, self.num_first = now, len(delta.token_ids)
            else:
                self.gaps.append(now - self.last)
            self.last = now
            self.num_tokens += len(delta.token_ids)
        self.text += delta.text
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.usage, self.error = delta.usage, delta.error

    @property
    def queued(self) -> float | None:
        """Seconds until its first round."""
        return None if self.begun is None else max(0.0, self.begun - self.arrived)

    @property
    def to_first_token(self) -> float | None:
        """Seconds until its first token."""
        return None if self.first is None else self.first - self.arrived

    @property
    def per_token(self) -> float | None:
        """Seconds a token, those of the first step left out; None if there are no others."""
        others = self.num_tokens - self.num_first
        if self.first is None or self.last is None or not others:
            return None
        return (self.last - self.first) / others

    @property
    def to_last_token(self) -> float | None:
        """Seconds until its last token."""
        return None if self.last is None else self.last - self.arrived
