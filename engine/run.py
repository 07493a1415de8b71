"""One sample of one request while it runs: what the engine keeps beside the scheduler."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler.request import Request
from scheduler.round import Commit, Verdict
from scheduler.stopping import cut

from .answer import Delta, TokenLogprob, Usage
from .constraint import ConstraintError, Mask, Matcher
from .detokenizer import Detokenizer
from .draw import Draw, DrawSource
from .prompt_reader import PromptLogprobs, PromptReader
from .sampling_params import SamplingParams
from .submission import Submission
from .text import TextStream

logger = logging.getLogger("octavo")

FAILED = "the request failed; the log of the engine says why"


@dataclass(slots=True)
class Run:
    """One sequence as its client sees it."""

    request: Request
    index: int
    params: SamplingParams
    seed: int
    source: DrawSource
    text: TextStream
    matcher: Matcher | None = None  # stands after the committed tokens
    reader: PromptReader | None = None  # wants to know of the prompt
    failure: str = ""  # why the round's pick cannot be kept
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the round in flight
    said: str = ""  # likewise
    has_spoken: bool = False  # a delta was given out

    @classmethod
    def start(cls, ready: Submission, index: int, detokenizer: Detokenizer) -> "Run":
        """Begin sample ``index`` of a request."""
        request, params = ready.request, ready.params
        source = DrawSource(ready.settings, ready.seed, index, request.prompt, request.emitted)
        text = TextStream(
            detokenizer,
            params.stop,
            include_stop=params.include_stop,
            min_tokens=params.min_tokens,
            num_generated=len(request.emitted),
        )
        matcher = None if ready.matcher is None else ready.matcher.fork()
        return cls(request, index, params, ready.seed, source, text, matcher, ready.reader)

    def begin_round(self) -> None:
        """Forget what a round that failed left behind."""
        self.logprobs, self.said, self.failure = [], "", ""

    def draws(self, drafts: Sequence[int]) -> list[Draw]:
        """Return the draws before each of ``drafts`` and after the last."""
        masks: list[Mask | None] = [None] * (len(drafts) + 1)
        if self.matcher is not None:
            try:
                masks = self.matcher.masks(drafts)
            except ConstraintError as error:
                self.give_up(str(error))
        return [self.source.draw(drafts[:ahead], mask=mask) for ahead, mask in enumerate(masks)]

    def draw(self, drafts: Sequence[int]) -> Draw:
        """Return the draw of the token after ``drafts``."""
        return self.draws(drafts)[-1] if self.matcher is not None else self.source.draw(drafts)

    def give_up(self, reason: str) -> None:
        """End the request with an error when its round is read."""
        self.failure = reason

    def read(self, verdict: Verdict) -> Verdict:
        """Say what the sequence will keep of ``verdict``, shortened where a stop string ends it."""
        if self.failure:
            return replace(verdict, tokens=(), finish="error")
        if not verdict.tokens:
            return verdict
        kept, finish = cut(self.request, self.source.num_generated, verdict.tokens)
        try:
            fed = self.text.feed(kept, finish)
        except Exception:
            logger.exception("text of request %s failed", self.request.request_id)
            return replace(verdict, tokens=(), finish="error")
        self.said = fed.text
        return replace(verdict, tokens=kept[: fed.num_kept], finish=fed.finish)

    def delta(self, commit: Commit, usage: Usage) -> Delta:
        """Return what the client gets for ``commit``; ``usage`` goes with the last one."""
        self.source.commit(commit.tokens)
        if self.matcher is not None:
            self.matcher.advance(commit.tokens)
        if commit.finish is not None and not commit.tokens and commit.finish != "error":
            self.said = self.text.feed((), commit.finish).text
        logprobs = prompt_logprobs = None
        if isinstance(self.reader, PromptLogprobs) and not self.has_spoken:
            prompt_logprobs = tuple(self.reader.entries)
        self.has_spoken = True
        if self.params.logprobs is not None:
            logprobs = tuple(self.logprobs[: len(commit.tokens)])
        return Delta(
            request_id=self.request.request_id,
            index=self.index,
            text=self.said,
            token_ids=commit.tokens,
            logprobs=logprobs,
            finish_reason=commit.finish,
            usage=None if commit.finish is None else usage,
            error=(self.failure or FAILED) if commit.finish == "error" else None,
            prompt_logprobs=prompt_logprobs,
        )

    def failed_delta(self, usage: Usage) -> Delta:
        """Return the last delta of a sample that an exception ended."""
        return Delta(
            self.request.request_id,
            self.index,
            text="",
            token_ids=(),
            finish_reason="error",
            usage=usage,
            error=FAILED,
        )
