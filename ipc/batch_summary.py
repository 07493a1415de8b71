"""What a batch job did, in plain numbers."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class BatchSummary:
    """Counts of one run of a job; ``kept_*`` are records that an earlier run left."""

    answered: int = 0
    failed: int = 0
    kept_answers: int = 0
    kept_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    seconds: float = 0.0  # from the first request to the last answer, without loading the model
    mean_batch_width: float | None = None  # rows a round
    peak_memory_bytes: int | None = None
    first_error: str | None = None  # "line 7: why"
    signal: int | None = None  # that ended the job before its input did

    @property
    def requests(self) -> int:
        """All lines that have a record now."""
        return self.answered + self.failed + self.kept_answers + self.kept_errors

    @property
    def all_failed(self) -> int:
        """Error records in the output, old and new."""
        return self.failed + self.kept_errors

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.completion_tokens / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return everything, for programs."""
        return {
            "requests": self.requests,
            **asdict(self),
            "tokens_per_second": round(self.tokens_per_second, 3),
        }
