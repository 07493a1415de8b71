"""The client of Octavo. It needs msgpack and pyzmq, nothing else: no engine, no mlx.

with Client("tcp://127.0.0.1:7766") as client:
    for part in client.submit("Once upon a time", {"max_tokens": 50}):
        print(part.text, end="")
    answers = client.gather(prompts, {"max_tokens": 50, "seed": 1})
"""

import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .async_client import AsyncClient, AsyncRequestHandle
from .burst import Burst
from .client_answers import Answer, Part, Prompt, RequestFailedError, Sample
from .client_connection import ClientConnection, ConnectionClosedError
from .client_core import ClientConfig, StreamEvent
from .client_requests import RequestProgress, make_submit, refuse_one_text
from .keys import KeyPair
from .limits import ANSWER_LINGER, DEFAULT_ADDRESS, DEFAULT_WINDOW
from .messages import Stats, Submit


class RequestHandle:
    """One request. Iterate over its parts, or wait for its ``result``. For one thread at a time.

    Leaving the loop before its end cancels the request, and so does dropping the handle.
    """

    def __init__(
        self,
        connection: ClientConnection,
        submit: Submit,
        timeout: float | None,
        *,
        wake: bool = True,
    ) -> None:
        self.id = submit.id
        self._events: queue.SimpleQueue[StreamEvent] = queue.SimpleQueue()
        self._progress = RequestProgress(connection, submit, self._events.put, timeout, wake=wake)

    @property
    def ended(self) -> bool:
        """Whether its end has been read."""
        return self._progress.ended is not None

    @property
    def seed(self) -> int | None:
        """The seed that samples; known once the request's acceptance has been read."""
        return self._progress.seed

    def __iter__(self) -> Iterator[Part]:
        """Yield parts as they come. Raises RequestFailedError."""
        progress = self._progress
        try:
            while progress.ended is None:
                yield from progress.take(self._events.get())
        finally:
            progress.cancel()
        progress.answer()

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the end and return the whole answer.

        Raises RequestFailedError, and TimeoutError after ``timeout`` seconds: the request goes on.
        """
        progress = self._progress
        progress.read_all()
        until = None if timeout is None else time.monotonic() + timeout
        while progress.ended is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            try:
                progress.take(self._events.get(timeout=left))
            except queue.Empty:
                raise TimeoutError(f"{self.id} has not ended within {timeout} s") from None
        return progress.answer()

    def read_all(self, *, wake: bool = True) -> None:
        """Let it run ahead without being read: its parts are kept in memory."""
        self._progress.read_all(wake=wake)

    def cancel(self) -> None:
        """End it. ``result`` then returns what came so far, with finish_reason "cancelled"."""
        self._progress.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_progress"):
            self._progress.cancel()


class Client:
    """A connection to a broker, usable from several threads.

    ``key`` and ``server_key`` are files that ``octavo keys new`` made: one's own secret key and
    the broker's public one. ``timeout`` holds for every request that names none. Requests survive
    lost connections and restarted brokers; "busy" is retried for ``retry_for`` seconds.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        key: str | Path | KeyPair | None = None,
        server_key: str | Path | bytes | None = None,
        timeout: float | None = None,
        retry_for: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        config = ClientConfig(retry_for=retry_for, patience=patience)
        self._timeout = timeout
        self._connection = ClientConnection(address, key=key, server_key=server_key, config=config)

    def submit(
        self,
        prompt: Prompt,
        params: Mapping[str, Any] | None = None,
        *,
        model: str = "",
        resume: bool = False,
        window: int = DEFAULT_WINDOW,
        linger: float = 0.0,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> RequestHandle:
        """Send a request; return at once.

        ``params`` are SamplingParams by name. ``resume``: if its worker is lost, go on elsewhere
        from what was emitted. ``window``: how many tokens it may run ahead of its reader.
        ``linger``: how many seconds tokens after the first may wait for later ones, which spares
        the service work where nobody reads them as they come. ``timeout``: seconds, after which it
        is cancelled and fails with code "timeout". Raises ValueError for what no broker would take.
        """
        return self._submit(
            *(prompt, params, timeout),
            model=model,
            resume=resume,
            window=window,
            linger=linger,
            request_id=request_id,
        )

    def _submit(
        self,
        prompt: Prompt,
        params: Mapping[str, Any] | None,
        timeout: float | None = None,
        *,
        wake: bool = True,
        **options: Any,
    ) -> RequestHandle:
        submit = make_submit(prompt, params, **options)
        return RequestHandle(self._connection, submit, timeout or self._timeout, wake=wake)

    def ask(
        self, prompt: Prompt, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Answer:
        """Send a request and wait for its answer. Options are those of ``submit``."""
        return self.submit(prompt, params, **{"linger": ANSWER_LINGER, **options}).result()

    def gather(
        self,
        prompts: Iterable[Prompt | RequestHandle],
        params: Mapping[str, Any] | None = None,
        *,
        concurrency: int = 256,
        return_errors: bool = False,
        **options: Any,
    ) -> list[Any]:
        """Return the answers to many prompts (or of handles), in their order.

        ``concurrency`` of them are open at a time. With ``return_errors`` a RequestFailedError
        takes the place of its answer; otherwise the first is raised and the others are cancelled.
        Options are those of ``submit``. Raises ValueError for what no broker would take.
        """
        refuse_one_text(prompts)
        options = {"linger": ANSWER_LINGER, **options}
        connection = self._connection
        waiting: deque[RequestHandle] = deque()
        burst = Burst()
        results: list[Answer | RequestFailedError] = []

        def finish_one() -> None:
            try:
                results.append(waiting[0].result())
            except RequestFailedError as error:
                if not return_errors:
                    raise
                results.append(error)
            waiting.popleft()

        try:
            for prompt in prompts:
                handle = prompt
                if not isinstance(handle, RequestHandle):
                    handle = self._submit(handle, params, wake=False, **options)
                handle.read_all(wake=False)
                waiting.append(handle)
                full = len(waiting) >= concurrency
                if burst.is_over() or full:
                    connection.wake()
                if full:
                    finish_one()
            connection.wake()
            while waiting:
                finish_one()
        finally:
            for handle in waiting:  # whatever went wrong with one of them
                handle.cancel()
        return results

    def stats(self, timeout: float = 5.0) -> Stats:
        """Return the broker's and its workers' figures. Raises TimeoutError."""
        return self._connection.stats(timeout)

    def close(self) -> None:
        """Cancel what is open and disconnect."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = [
    "DEFAULT_ADDRESS",
    "Answer",
    "AsyncClient",
    "AsyncRequestHandle",
    "Client",
    "ConnectionClosedError",
    "Part",
    "Prompt",
    "RequestFailedError",
    "RequestHandle",
    "Sample",
]
