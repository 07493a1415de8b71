"""One sample of one request while it runs: what the engine keeps beside the scheduler."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scheduler.request import FinishReason, Request
from scheduler.round import Commit, Verdict
from scheduler.stopping import cut

from .answer import Delta, TokenLogprob, Usage
from .constraint import ConstraintError, Mask, Matcher
from .detokenizer import Detokenizer
from .drafting.chain import Chain
from .draw import Draw, DrawSource
from .lookahead import Lookahead
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
    ended: FinishReason | None = None  # an earlier run had ended it
    lookahead: Lookahead | None = None  # of the matcher, in the round in flight
    failure: tuple[int, str] | None = None  # after how many of the round's tokens, and why
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
        )
        kept, finish = cut(request, 0, request.emitted)
        finish = text.feed(kept, finish).finish  # said by the earlier run
        matcher = None if ready.matcher is None else ready.matcher.fork()
        seed, reader = ready.seed, ready.reader
        return cls(request, index, params, seed, source, text, matcher, reader, ended=finish)

    def begin_round(self) -> None:
        """Forget what a round that failed left behind."""
        self.logprobs, self.said, self.failure = [], "", None
        if self.matcher is not None:
            self.lookahead = Lookahead(self.matcher)

    def undo(self, tokens: Sequence[int]) -> None:
        """A round failed, and its sequence still has ``tokens``: no more than these say is said."""
        self.text = self.text.after(tokens)
        self.logprobs, self.said, self.failure = [], "", None

    @property
    def is_plain(self) -> bool:
        """Whether all that follows is the argmax of the logits as they are."""
        return self.lookahead is None and self.source.is_plain

    def draws(self, drafts: Sequence[int]) -> list[Draw]:
        """Return the draws before each of ``drafts`` and after the last."""
        masks: list[Mask | None] = [None] * (len(drafts) + 1)
        if self.lookahead is not None:
            masks = self.lookahead.masks(drafts)
            if self.lookahead.failure is not None:
                self.give_up(*self.lookahead.failure)
        return [self.source.draw(drafts[:ahead], mask=mask) for ahead, mask in enumerate(masks)]

    def draw_ahead(self, num_ahead: int) -> Draw:
        """Return the draw of the token after so many that are on their way, whatever they are."""
        return self.source.draw(num_ahead=num_ahead)

    @property
    def needs_drafts(self) -> bool:
        """Whether what is said after drafts depends on what they are."""
        return self.lookahead is not None or self.source.needs_drafts

    @property
    def is_settled(self) -> bool:
        """Whether a pick from here on depends on its logits and its place alone."""
        return not self.needs_drafts and not self.source.is_early

    def draw_after(self, chain: Chain, row: int) -> Draw:
        """Return the draw of the token after the drafts of ``row``.

        They are read, which evaluates them, only where they change what may be said next.
        """
        if not self.needs_drafts:
            return self.source.draw(num_ahead=len(chain))
        drafts = chain.of(row)
        mask = None if self.lookahead is None else self.lookahead.masks(drafts)[-1]
        return self.source.draw(drafts, mask=mask)

    def give_up(self, num_kept: int, reason: str) -> None:
        """End the request with an error if the round gives more tokens than ``num_kept``."""
        if self.failure is None or num_kept < self.failure[0]:
            self.failure = num_kept, reason

    def read(self, verdict: Verdict) -> Verdict:
        """Say what the sequence will keep of ``verdict``, shortened where a stop string ends it."""
        if not verdict.tokens:
            return verdict
        tokens = verdict.tokens if self.failure is None else verdict.tokens[: self.failure[0]]
        kept, finish = cut(self.request, self.source.num_generated, tokens)
        if finish is None and len(kept) < len(verdict.tokens):
            finish = "error"
        try:
            fed = self.text.feed(kept, finish)
        except Exception:
            logger.exception("text of request %s failed", self.request.request_id)
            self.text.abandon()
            self.failure = None
            return replace(verdict, tokens=(), finish="error")
        self.said = fed.text
        if fed.finish is None and fed.num_kept == len(verdict.tokens):
            return verdict  # whole, as nearly always
        return replace(verdict, tokens=kept[: fed.num_kept], finish=fed.finish)

    def delta(self, commit: Commit, usage: Callable[[], Usage]) -> Delta:
        """Return what the client gets for ``commit``; ``usage`` goes with the last one."""
        finish = self.ended or commit.finish
        self.source.commit(commit.tokens)
        if self.matcher is not None:
            try:
                self.matcher.advance(commit.tokens)
            except ConstraintError as error:
                finish, self.failure = finish or "error", (len(commit.tokens), str(error))
        if finish is not None and not self.text.ended:
            self.said += self.text.feed((), finish).text
        said, self.said = self.said, ""
        logprobs = prompt_logprobs = None
        if isinstance(self.reader, PromptLogprobs) and not self.has_spoken:
            prompt_logprobs = tuple(self.reader.entries)
        self.has_spoken = True
        if self.params.logprobs is not None:
            logprobs = tuple(self.logprobs[: len(commit.tokens)])
        return Delta(
            request_id=self.request.request_id,
            index=self.index,
            text=said,
            token_ids=commit.tokens,
            logprobs=logprobs,
            finish_reason=finish,
            usage=None if finish is None else usage(),
            error=self._error() if finish == "error" else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _error(self) -> str:
        return FAILED if self.failure is None else self.failure[1]

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
