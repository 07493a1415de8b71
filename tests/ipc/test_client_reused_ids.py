"""Handles that share a request id: what is done to one never reaches the other's request."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress

import pytest
from wire_in_process import InProcess, wait_until

from ipc.client import AsyncClient, Client, RequestFailedError, RequestHandle
from ipc.fake_engine import fake_tokens
from ipc.messages import Error
from ipc.token_ids import unpack_ids

ENDLESS = {"max_tokens": 10**6, "seed": 1}
PARAMS = {"max_tokens": 100, "seed": 1}
ANSWER = list(fake_tokens(b"one", 1, 0, 0, 100))


def wait_for_it(handle: RequestHandle) -> None:
    with suppress(RequestFailedError):
        handle.result(60)


LEAVING: list[Callable[[RequestHandle], None]] = [
    RequestHandle.cancel,
    RequestHandle.__del__,
    RequestHandle.read_all,
    wait_for_it,
]


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_a_refused_handle_leaves_the_request_that_has_its_id_alone(
    client: Client, leave: Callable[[RequestHandle], None]
) -> None:
    first = client.submit("one", PARAMS, request_id="same", window=8)
    leave(client.submit("two", request_id="same"))
    gc.collect()
    client.ask("other", PARAMS)  # as many rounds as the first needs

    assert unread_tokens(first) <= 8  # nobody has read it, so it waits for its reader
    assert first.result(60).token_ids == ANSWER


def unread_tokens(handle: RequestHandle) -> int:
    events = [handle._events.get() for _ in range(handle._events.qsize())]
    for event in events:
        handle._events.put(event)
    return sum(len(unpack_ids(getattr(event, "ids", b""))) for event in events)


def test_who_tries_again_under_the_same_name_is_not_cancelled_by_the_first_try(
    narrow: InProcess,
) -> None:
    with Client(narrow.address, retry_for=0.0) as client:
        blocker = client.submit("endless", ENDLESS)
        wait_until(lambda: narrow.engines[0].samples)
        handle = client.submit("one", request_id="same")
        wait_until(handle._events.qsize)
        refusal = handle._events.get()
        assert isinstance(refusal, Error)
        assert refusal.code == "busy"
        handle._events.put(refusal)
        blocker.cancel()
        blocker.result(60)

        handle = client.submit("one", PARAMS, request_id="same")  # the first try goes unread
        gc.collect()
        assert handle.result(60).token_ids == ANSWER


def test_asyncio_too_drops_a_handles_own_request_alone(running: InProcess) -> None:
    async def use() -> None:
        async with AsyncClient(running.address) as client:
            first = client.submit("one", PARAMS, request_id="same")
            second = client.submit("two", request_id="same")
            second.cancel()
            del second
            gc.collect()
            assert (await first.result()).token_ids == ANSWER
            first = client.submit("one", PARAMS, request_id="again")
            with pytest.raises(RequestFailedError, match="in use"):
                await client.submit("two", request_id="again").result()
            assert (await first.result()).token_ids == ANSWER

    asyncio.run(asyncio.wait_for(use(), 90))
