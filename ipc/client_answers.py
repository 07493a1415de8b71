"""What a client gets: parts while a request runs, an answer at its end, or an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .messages import Done, Error, Logprob, Piece
from .token_ids import unpack_ids

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or the messages of a conversation: {"role": ..., "content": ...}."""


class RequestFailedError(Exception):
    """A request ended without an answer.

    ``code`` is one of docs/protocol.md, or "timeout", "unreachable" or "closed" from the client
    itself; ``retryable`` says whether the same request may succeed later, ``progress`` how many
    tokens had been sent.
    """

    def __init__(self, code: str, message: str, *, retryable: bool, progress: int = 0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.progress = progress


@dataclass(frozen=True, slots=True)
class Part:
    """What one sample gained; with ``finish_reason`` and ``usage`` if it ended.

    ``prompt_logprobs``, if asked for, come before a request's first token, in several parts if the
    prompt is long; the first entry of a part is that of the prompt's token ``prompt_start``.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprob, ...] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    prompt_logprobs: tuple[Logprob | None, ...] | None = None
    prompt_start: int = 0


@dataclass(slots=True)
class Sample:
    """One of a request's n samples."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    error: str | None = None


@dataclass(slots=True)
class Answer:
    """All samples of a request. ``text`` and the like are those of the first.

    ``prompt_logprobs``, if asked for, has one entry a token of the prompt; the first has none.
    """

    request_id: str
    seed: int
    samples: list[Sample]
    prompt_logprobs: list[Logprob | None] | None = None

    @property
    def text(self) -> str:
        """The first sample's text."""
        return self.samples[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first sample's token ids."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why the first sample ended."""
        return self.samples[0].finish_reason

    @property
    def usage(self) -> Mapping[str, int] | None:
        """The first sample's tokens."""
        return self.samples[0].usage


class AnswerBuilder:
    """Adds up parts."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._samples: dict[int, Sample] = {}
        self._texts: dict[int, list[str]] = {}
        self._prompt_logprobs: list[Logprob | None] | None = None

    def add(self, part: Part) -> None:
        """Add what one sample gained."""
        sample = self._samples.setdefault(part.index, Sample(part.index))
        self._texts.setdefault(part.index, []).append(part.text)
        sample.token_ids += part.token_ids
        if part.logprobs is not None:
            sample.logprobs = [*(sample.logprobs or []), *part.logprobs]
        if part.prompt_logprobs is not None:
            known = self._prompt_logprobs = self._prompt_logprobs or []
            # a second worker, which took over before the first token, begins anew
            known += part.prompt_logprobs[max(len(known) - part.prompt_start, 0) :]

    def finish(self, done: Done) -> Answer:
        """Return the whole answer."""
        samples = []
        for end in done.samples:
            sample = self._samples.get(end.index, Sample(end.index))
            sample.text = "".join(self._texts.get(end.index, ()))
            sample.finish_reason, sample.usage, sample.error = end.reason, end.usage, end.error
            samples.append(sample)
        return Answer(self._request_id, done.seed, samples, self._prompt_logprobs)


def parts_of(pieces: Sequence[Piece], ids: bytes) -> list[Part]:
    """Return the parts of one chunk."""
    tokens = unpack_ids(ids)
    parts = []
    start = 0
    for piece in pieces:
        taken = tokens[start : start + piece.count]
        start += piece.count
        parts.append(
            Part(
                *(piece.index, piece.text, taken, piece.logprobs, piece.reason, piece.usage),
                prompt_logprobs=piece.prompt_logprobs,
                prompt_start=piece.prompt_start,
            )
        )
    return parts


def failure(error: Error) -> RequestFailedError:
    """Return the exception for an error message."""
    return RequestFailedError(
        error.code, error.message, retryable=error.retryable, progress=error.progress or 0
    )
