"""One request of a client: the message that asks, and what its events add up to."""

import uuid
from collections.abc import Mapping
from typing import Any

from .client_answers import (
    Answer,
    AnswerBuilder,
    Part,
    Prompt,
    RequestFailedError,
    failure,
    parts_of,
)
from .client_connection import ClientConnection, Sink
from .client_core import StreamEvent
from .codec import encode
from .limits import DEFAULT_WINDOW
from .messages import Accepted, ChatMessage, Chunk, Done, Submit
from .token_ids import pack_ids
from .wire_params import to_wire


def make_submit(
    prompt: Prompt,
    params: Mapping[str, Any] | None,
    *,
    model: str = "",
    resume: bool = False,
    window: int = DEFAULT_WINDOW,
    linger: float = 0.0,
    request_id: str | None = None,
) -> Submit:
    """Return the message for a request. Raises ValueError saying what is wrong with it."""
    common: dict[str, Any] = {
        "id": request_id or uuid.uuid4().hex,
        "model": model,
        "params": to_wire(params or {}),
        "window": window,
        "linger": linger,
        "resume": resume,
    }
    if isinstance(prompt, str):
        submit = Submit(kind="text", text=prompt, **common)
    elif prompt and all(isinstance(part, Mapping) for part in prompt):
        try:
            messages = tuple(
                ChatMessage(part["role"], part["content"])  # type: ignore[index]
                for part in prompt
            )
        except KeyError as error:
            raise ValueError(f"every message of a conversation needs {error}") from None
        submit = Submit(kind="messages", messages=messages, **common)
    else:
        ids = pack_ids(prompt)  # type: ignore[arg-type]
        submit = Submit(kind="tokens", prompt_ids=ids, **common)
    encode(submit)  # too long a prompt is refused here, not on the wire
    return submit


def refuse_one_text(prompts: object) -> None:
    """Raise ValueError for a text in place of several prompts: to Python it is many."""
    if isinstance(prompts, str):
        raise ValueError(f"prompts must be several, not one text: [{prompts!r:.60}]")


class RequestProgress:
    """What has been read of one request, which it sends; it grants credit as parts are read.

    ``sink`` gets the request's events. The connection holds it until the end: what a user may drop
    before must not be within its reach.
    """

    def __init__(
        self,
        connection: ClientConnection,
        submit: Submit,
        sink: Sink,
        timeout: float | None = None,
        *,
        wake: bool = True,
    ) -> None:
        self.seed: int | None = None
        self.ended: Answer | RequestFailedError | None = None
        self._connection = connection
        self._builder = AnswerBuilder(submit.id)
        self._reads_all = False
        self._unreported = 0
        self._report_every = max(submit.window // 4, 1)
        self._reader = connection.submit(submit, sink, timeout, wake=wake)

    def take(self, event: StreamEvent) -> list[Part]:
        """Read one event; return the parts in it."""
        if isinstance(event, Accepted):
            self.seed = event.seed
        elif isinstance(event, Chunk):
            return self._take_chunk(event)
        elif isinstance(event, Done):
            self.ended = self._builder.finish(event)
        else:
            self.ended = failure(event)
        return []

    def _take_chunk(self, chunk: Chunk) -> list[Part]:
        parts = parts_of(chunk.pieces, chunk.ids)
        for part in parts:
            self._builder.add(part)
            self._unreported += len(part.token_ids)
        if not self._reads_all and self._unreported >= self._report_every:
            self._connection.consume(self._reader, self._unreported)
            self._unreported = 0
        return parts

    def answer(self) -> Answer:
        """Return the answer, once it has ended. Raises RequestFailedError."""
        assert self.ended is not None
        if isinstance(self.ended, RequestFailedError):
            raise self.ended
        return self.ended

    def read_all(self, *, wake: bool = True) -> None:
        """Grant credit on arrival from now on."""
        if not self._reads_all and self.ended is None:
            self._reads_all = True
            self._connection.read_all(self._reader, wake=wake)

    def cancel(self) -> None:
        """End it."""
        if self.ended is None:
            self._connection.cancel(self._reader)
