"""Many requests at a time: what comes of the others where one fails."""

import asyncio
from collections.abc import Iterator

import pytest
from wire_in_process import InProcess, wait_until

from ipc.client import AsyncClient, Client, RequestFailedError
from ipc.fake_engine import FakeEngine

ENDLESS = {"max_tokens": 10**6, "seed": 1}
PROMPTS = ["endless", "!refuse", "endless too"]


def test_where_one_fails_the_others_are_cancelled_at_once(
    client: Client, engine: FakeEngine
) -> None:
    with pytest.raises(RequestFailedError, match="asks to be refused") as caught:
        client.gather(PROMPTS[1:], ENDLESS)

    wait_until(lambda: not engine.samples)
    assert caught.value.code == "bad_request"  # kept, and with it what led to it


def test_where_one_cannot_be_sent_the_others_are_cancelled_at_once(
    client: Client, engine: FakeEngine
) -> None:
    def prompts() -> Iterator[str | list[int]]:
        yield from ["endless"] * 100  # so many that they leave before the last is there
        wait_until(lambda: bool(engine.samples))
        yield [-1]

    with pytest.raises(ValueError, match="token id") as caught:
        client.gather(prompts(), ENDLESS)

    wait_until(lambda: not engine.samples)
    assert caught.value


def test_asyncio_raises_what_failed_and_cancels_the_others(
    running: InProcess, engine: FakeEngine
) -> None:
    async def use() -> None:
        async with AsyncClient(running.address) as client:
            with pytest.raises(RequestFailedError, match="asks to be refused"):
                await client.gather(PROMPTS, ENDLESS)
            while engine.samples:
                await asyncio.sleep(0.01)
            found = await client.gather(
                ["one", "!refuse"], {"max_tokens": 3, "seed": 1}, return_errors=True
            )
            assert len(found[0].token_ids) == 3
            assert found[1].code == "bad_request"
            task = asyncio.create_task(client.gather(["endless", "endless too"], ENDLESS))
            while len(engine.samples) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while engine.samples:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(use(), 60))


def test_a_text_in_place_of_several_is_refused(running: InProcess, client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(running.address) as other:
            await other.gather("The sea")

    with pytest.raises(ValueError, match="prompts must be several, not one text"):
        client.gather("The sea")
    with pytest.raises(ValueError, match="prompts must be several, not one text"):
        asyncio.run(use())
