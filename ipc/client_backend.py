"""A batch's backend that is a running service, reached through a client's connection."""

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from engine.answer import Delta, TokenLogprob, Usage
from engine.sampling_params import SamplingParams

from .bad_request_error import BadRequestError
from .batch_backend import BackendLostError
from .batch_request import Prompt, given_parameters
from .client_answers import Answer, Part, RequestFailedError
from .client_connection import ClientConnection
from .client_core import StreamEvent
from .client_requests import RequestProgress, make_submit
from .limits import ANSWER_LINGER

WAIT_SECONDS = 0.1  # the longest that a step waits for news
LOST = frozenset({"unreachable", "closed", "no_worker", "busy", "draining", "unknown_model"})
"""Failures of the service and not of one request: the next would fail the same way."""


class ClientBackend:
    """A service, as a batch job sees it. Requests survive a lost connection, broker or worker."""

    def __init__(self, connection: ClientConnection, *, model: str, max_rows: int) -> None:
        self._connection = connection
        self._model = model
        self._max_rows = max_rows
        self._events: queue.SimpleQueue[tuple[str, StreamEvent]] = queue.SimpleQueue()
        self._running: dict[str, RequestProgress] = {}
        self._lost: RequestFailedError | None = None  # told once what came before is read

    @property
    def max_rows(self) -> int:
        """How many rows the service is taken to have."""
        return self._max_rows

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams) -> int | None:
        """Send a request; BadRequestError for what no broker would take."""
        try:
            submit = make_submit(
                prompt,
                given_parameters(params),
                model=self._model,
                resume=params.n == 1,
                linger=ANSWER_LINGER,
                request_id=request_id,
            )
        except ValueError as error:
            raise BadRequestError("refused", str(error)) from None
        progress = RequestProgress(
            self._connection, submit, lambda event: self._events.put((request_id, event))
        )
        self._running[request_id] = progress
        progress.read_all()
        return params.seed

    def step(self) -> Sequence[Delta]:
        """Return what has arrived; waits a moment if nothing has.

        Raises BackendLostError if the service is gone, or has not the model.
        """
        if self._lost is not None:
            raise BackendLostError(str(self._lost))
        deltas: list[Delta] = []
        with suppress(queue.Empty):
            deltas += self._take(*self._events.get(timeout=WAIT_SECONDS))
            while True:
                deltas += self._take(*self._events.get_nowait())
        return deltas

    def cancel(self, request_id: str) -> None:
        """Cancel at the service."""
        progress = self._running.pop(request_id, None)
        if progress is not None:
            progress.cancel()

    def token_text(self, token_id: int) -> str:
        """Return a name for the token: the service has the tokenizer, not its client."""
        return f"token_id:{token_id}"

    def figures(self) -> Mapping[str, float]:
        """Nothing: the service's figures are of all its clients (``octavo top``)."""
        return {}

    def _take(self, request_id: str, event: StreamEvent) -> Iterator[Delta]:
        progress = self._running.get(request_id)
        if progress is None:
            return
        for part in progress.take(event):
            yield _gain(request_id, part)
        if progress.ended is None:
            return
        del self._running[request_id]
        if isinstance(progress.ended, Answer):
            yield from _ends(progress.ended)
        elif progress.ended.code in LOST:
            self._lost = progress.ended
        else:
            yield _failure(request_id, progress.ended)


def _gain(request_id: str, part: Part) -> Delta:
    logprobs = None
    if part.logprobs is not None:
        logprobs = tuple(TokenLogprob(*entry) for entry in part.logprobs)
    return Delta(request_id, part.index, part.text, part.token_ids, logprobs)


def _ends(answer: Answer) -> Iterator[Delta]:
    prompt_logprobs = None
    if answer.prompt_logprobs is not None:
        entries = answer.prompt_logprobs
        prompt_logprobs = tuple(None if each is None else TokenLogprob(*each) for each in entries)
    for sample in answer.samples:
        yield Delta(
            answer.request_id,
            sample.index,
            "",
            (),
            finish_reason=sample.finish_reason,  # type: ignore[arg-type]  # the wire checked it
            usage=None if sample.usage is None else Usage(**sample.usage),
            error=sample.error,
            prompt_logprobs=prompt_logprobs,
        )


def _failure(request_id: str, error: RequestFailedError) -> Delta:
    return Delta(request_id, 0, "", (), finish_reason="error", error=str(error))
