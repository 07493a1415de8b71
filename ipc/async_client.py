"""The client for asyncio. The same thread serves it; events cross into the loop that asked."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .client_answers import Answer, Part, Prompt, RequestFailedError
from .client_connection import ClientConnection
from .client_core import ClientConfig, StreamEvent
from .client_requests import RequestProgress, make_submit, refuse_one_text
from .keys import KeyPair
from .limits import ANSWER_LINGER, DEFAULT_ADDRESS, DEFAULT_WINDOW
from .messages import Stats, Submit


class AsyncRequestHandle:
    """One request. Iterate over its parts with ``async for``, or await its ``result()``.

    Leaving the loop before its end cancels the request, and so does cancelling the task, or
    dropping the handle.
    """

    def __init__(self, connection: ClientConnection, submit: Submit, timeout: float | None) -> None:
        self.id = submit.id
        self._events: asyncio.Queue[StreamEvent] = asyncio.Queue()
        loop, put_nowait = asyncio.get_running_loop(), self._events.put_nowait

        def put(event: StreamEvent) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(put_nowait, event)

        self._progress = RequestProgress(connection, submit, put, timeout)

    @property
    def ended(self) -> bool:
        """Whether its end has been read."""
        return self._progress.ended is not None

    @property
    def seed(self) -> int | None:
        """The seed that samples; known once the request's acceptance has been read."""
        return self._progress.seed

    async def __aiter__(self) -> AsyncIterator[Part]:
        """Yield parts as they come. Raises RequestFailedError."""
        progress = self._progress
        try:
            while progress.ended is None:
                for part in progress.take(await self._events.get()):
                    yield part
        finally:
            progress.cancel()
        progress.answer()

    async def result(self) -> Answer:
        """Wait for the end and return the whole answer. Raises RequestFailedError."""
        progress = self._progress
        progress.read_all()
        try:
            while progress.ended is None:
                progress.take(await self._events.get())
        except asyncio.CancelledError:
            progress.cancel()
            raise
        return progress.answer()

    def cancel(self) -> None:
        """End it. ``result`` then returns what came so far, with finish_reason "cancelled"."""
        self._progress.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_progress"):
            self._progress.cancel()


class AsyncClient:
    """As ``Client``, for one asyncio loop. Parameters are the same."""

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
    ) -> AsyncRequestHandle:
        """Send a request; return at once. As ``Client.submit``."""
        submit = make_submit(
            prompt,
            params,
            model=model,
            resume=resume,
            window=window,
            linger=linger,
            request_id=request_id,
        )
        return AsyncRequestHandle(self._connection, submit, timeout or self._timeout)

    async def ask(
        self, prompt: Prompt, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Answer:
        """Send a request and wait for its answer. As ``Client.ask``."""
        options = {"linger": ANSWER_LINGER, **options}
        return await self.submit(prompt, params, **options).result()

    async def gather(
        self,
        prompts: Iterable[Prompt],
        params: Mapping[str, Any] | None = None,
        *,
        concurrency: int = 256,
        return_errors: bool = False,
        **options: Any,
    ) -> list[Any]:
        """Return the answers to many prompts, in their order. As ``Client.gather``."""
        refuse_one_text(prompts)
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: Prompt) -> Answer | RequestFailedError:
            async with gate:
                try:
                    return await self.ask(prompt, params, **options)
                except RequestFailedError as error:
                    if not return_errors:
                        raise
                    return error

        tasks = [asyncio.create_task(one(prompt)) for prompt in list(prompts)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # whatever went wrong with one of them
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stats(self, timeout: float = 5.0) -> Stats:
        """Return the broker's and its workers' figures. Raises TimeoutError."""
        return await asyncio.to_thread(self._connection.stats, timeout)

    async def close(self) -> None:
        """Cancel what is open and disconnect."""
        await asyncio.to_thread(self._connection.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
