"""The clients, as a user uses them, against a broker in this process."""

import asyncio
import gc
import select
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from wire_in_process import InProcess, wait_until

from ipc.client import (
    AsyncClient,
    Client,
    ConnectionClosedError,
    RequestFailedError,
)
from ipc.fake_engine import FakeEngine, fake_text, fake_tokens
from ipc.messages import Submit
from ipc.plain_dealer import PlainDealer
from ipc.plain_router import PlainRouter

needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="Linux has epoll")
ENDLESS = {"max_tokens": 10**6, "seed": 1}


def test_parts_add_up_to_the_answer(client: Client) -> None:
    handle = client.submit("sum", {"max_tokens": 20, "seed": 4, "n": 2, "logprobs": 2})
    parts = list(handle)
    answer = handle.result()

    assert handle.seed == answer.seed == 4
    for sample in answer.samples:
        expected = fake_tokens(b"sum", 4, sample.index, 0, 20)
        mine = [part for part in parts if part.index == sample.index]
        assert sample.token_ids == [t for part in mine for t in part.token_ids] == list(expected)
        assert sample.text == "".join(part.text for part in mine) == fake_text(expected)
        assert sample.logprobs is not None
        assert [entry[0] for entry in sample.logprobs] == list(expected)
        assert sample.logprobs[0] == (expected[0], -0.5, ((0, -1.0), (1, -1.0)))
        assert sample.usage == mine[-1].usage
        assert (sample.finish_reason, mine[-1].finish_reason) == ("length", "length")


def test_a_prompt_may_be_text_token_ids_or_messages(client: Client) -> None:
    params = {"max_tokens": 3, "seed": 1}
    messages = [{"role": "user", "content": "hi"}]
    assert client.ask([1, 2], params).token_ids == list(
        fake_tokens(b"\1\0\0\0\2\0\0\0", 1, 0, 0, 3)
    )
    assert client.ask(messages, params).token_ids == list(fake_tokens(b"user: hi", 1, 0, 0, 3))


def test_without_a_seed_the_drawn_one_repeats_the_answer(client: Client) -> None:
    first = client.ask("dice", {"max_tokens": 5})
    again = client.ask("dice", {"max_tokens": 5, "seed": first.seed})
    assert again.token_ids == first.token_ids
    assert client.ask("dice", {"max_tokens": 5}).seed != first.seed


def test_only_who_waits_for_whole_answers_lets_tokens_wait(
    running: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers: dict[str, float] = {}
    admitted = running.broker.core.observer.admitted

    def note(job: Any) -> None:
        lingers[job.submit.text] = job.submit.linger
        admitted(job)

    monkeypatch.setattr(running.broker.core.observer, "admitted", note)
    params = {"max_tokens": 3, "seed": 1}
    client.ask("ask", params)
    client.gather(["gather"], params)
    client.gather(["own"], params, linger=0.5)
    client.submit("stream", params).result()

    async def ask() -> None:
        async with AsyncClient(running.address) as other:
            await other.ask("async ask", params)
            await other.gather(["async gather"], params)
            await other.submit("async stream", params).result()

    asyncio.run(ask())
    assert lingers == {
        "ask": 0.25,
        "gather": 0.25,
        "own": 0.5,
        "stream": 0.0,
        "async ask": 0.25,
        "async gather": 0.25,
        "async stream": 0.0,
    }


def test_leaving_the_loop_cancels(client: Client, engine: FakeEngine) -> None:
    handle = client.submit("endless", ENDLESS)
    for part in handle:
        assert part.token_ids
        break
    answer = handle.result(60)
    assert answer.finish_reason == "cancelled"
    assert answer.token_ids == list(fake_tokens(b"endless", 1, 0, 0, len(answer.token_ids)))
    wait_until(lambda: not engine.samples)


def test_dropping_the_handle_cancels(client: Client, engine: FakeEngine) -> None:
    handle = client.submit("endless", ENDLESS)
    wait_until(lambda: engine.samples)
    del handle
    gc.collect()
    wait_until(lambda: not engine.samples)


@pytest.fixture
def patient() -> Iterator[InProcess]:
    """A broker that takes a client for gone after twelve seconds of silence."""
    patient = InProcess(heartbeat=4.0)
    patient.worker(step=0.002)
    yield patient
    patient.close()


def test_closing_the_client_cancels_and_tells_who_waits(patient: InProcess) -> None:
    engine = patient.engines[0]
    client = Client(patient.address)
    handle = client.submit("endless", ENDLESS)
    wait_until(lambda: engine.samples)
    client.close()
    with pytest.raises(RequestFailedError, match="closed"):
        handle.result(60)
    wait_until(lambda: not engine.samples, 10)  # it said so: nobody waited for its silence
    with pytest.raises(ConnectionClosedError):
        client.submit("late")


def test_gather_keeps_the_order_and_can_return_errors(client: Client) -> None:
    prompts = [f"p{n}" for n in range(40)]
    prompts[7] = "!refuse"
    params = {"max_tokens": 4, "seed": 1}
    answers = client.gather(prompts, params, concurrency=10, return_errors=True)
    for number, answer in enumerate(answers):
        if number == 7:
            assert answer.code == "bad_request"
        else:
            assert answer.token_ids == list(fake_tokens(prompts[number].encode(), 1, 0, 0, 4))
    with pytest.raises(RequestFailedError, match="asks to be refused"):
        client.gather(prompts, params)


def test_a_result_that_is_late_goes_on(client: Client) -> None:
    handle = client.submit("late", {"max_tokens": 200, "seed": 1})
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    assert handle.result(60).token_ids == list(fake_tokens(b"late", 1, 0, 0, 200))


def test_a_requests_own_timeout_cancels_it(client: Client, engine: FakeEngine) -> None:
    with pytest.raises(RequestFailedError, match="timeout") as caught:
        client.submit("endless", ENDLESS, timeout=1.5).result()
    assert caught.value.progress > 0
    wait_until(lambda: not engine.samples)


def test_what_no_broker_would_take_is_refused_at_once(client: Client) -> None:
    with pytest.raises(ValueError, match="did you mean 'temperature'"):
        client.submit("hi", {"temprature": 1})
    with pytest.raises(ValueError, match="max_tokens"):
        client.submit("hi", {"max_tokens": 0})
    with pytest.raises(ValueError, match="token ids"):
        client.submit([-1])
    with pytest.raises(ValueError, match="bytes"):
        client.submit("x" * (5 << 20))
    with pytest.raises(ValueError, match="'content'"):
        client.submit([{"role": "user"}])


def test_what_is_cancelled_before_it_is_let_in_is_answered(narrow: InProcess) -> None:
    with Client(narrow.address, retry_for=30) as client:
        blocking = client.submit("endless", ENDLESS)
        wait_until(lambda: narrow.engines[0].samples)
        waiting = client.submit("more", {"max_tokens": 4, "n": 2, "seed": 7})
        time.sleep(0.2)  # it has been told to come again
        waiting.cancel()
        waiting.cancel()
        answer = waiting.result(60)
        assert [sample.finish_reason for sample in answer.samples] == ["cancelled"] * 2
        assert (answer.seed, answer.token_ids) == (7, [])
        blocking.cancel()


def test_busy_is_retried_and_then_told(narrow: InProcess) -> None:
    with Client(narrow.address, retry_for=0.3) as client:
        blocker = client.submit("endless", ENDLESS)
        blocker.read_all()
        next_in_line = client.submit("next", {"max_tokens": 3, "seed": 1})
        with pytest.raises(RequestFailedError, match="busy") as caught:
            next_in_line.result(60)
        assert caught.value.retryable
    with Client(narrow.address) as client:
        blocker = client.submit("short", {"max_tokens": 100})
        blocker.read_all()
        assert client.ask("next", {"max_tokens": 3, "seed": 1}).finish_reason == "length"


def test_asyncio_streams_gathers_and_cancels(running: InProcess, engine: FakeEngine) -> None:
    async def use() -> None:
        async with AsyncClient(running.address) as client:
            handle = client.submit("one", {"max_tokens": 10, "seed": 1})
            ids = [token async for part in handle for token in part.token_ids]
            assert ids == list(fake_tokens(b"one", 1, 0, 0, 10))
            answers = await client.gather(["a", "b", "c"], {"max_tokens": 4, "seed": 1})
            assert [a.token_ids for a in answers] == [
                list(fake_tokens(word, 1, 0, 0, 4)) for word in (b"a", b"b", b"c")
            ]
            left = client.submit("endless", ENDLESS)
            async for _part in left:
                break
            assert (await left.result()).finish_reason == "cancelled"
            task = asyncio.create_task(client.ask("endless too", ENDLESS))
            while not engine.samples:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while engine.samples:
                await asyncio.sleep(0.01)
            with pytest.raises(RequestFailedError, match="asks to be refused"):
                await client.ask("!refuse")
            assert (await client.stats()).stats["clients"] == 1

    asyncio.run(asyncio.wait_for(use(), 90))


def test_asyncio_cancels_what_is_dropped_unread(running: InProcess, engine: FakeEngine) -> None:
    async def use() -> None:
        async with AsyncClient(running.address) as client:
            handle = client.submit("endless", ENDLESS)
            await asyncio.to_thread(wait_until, lambda: engine.samples)
            del handle
            gc.collect()
            await asyncio.to_thread(wait_until, lambda: not engine.samples, 10)

    asyncio.run(asyncio.wait_for(use(), 90))


def test_an_id_that_is_in_use_is_refused_and_harms_nobody(client: Client) -> None:
    first = client.submit("one", {"max_tokens": 100, "seed": 1}, request_id="same")
    with pytest.raises(RequestFailedError, match="in use"):
        client.submit("two", request_id="same").result(60)
    assert first.result(60).token_ids == list(fake_tokens(b"one", 1, 0, 0, 100))


def test_stats_without_a_broker_time_out() -> None:
    with Client("tcp://127.0.0.1:9") as client, pytest.raises(TimeoutError):
        client.stats(0.2)


def test_one_client_serves_several_threads(client: Client) -> None:
    answers: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        params = {"max_tokens": 10, "seed": 1}
        answers[number] = client.ask(f"t{number}", params).token_ids

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == {n: list(fake_tokens(f"t{n}".encode(), 1, 0, 0, 10)) for n in range(8)}


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=needs_epoll)])
def test_a_socket_belongs_to_one_thread_and_closes_before_its_context(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    threads: dict[int, set[int]] = defaultdict(set)
    open_at_term: list[int] = []
    contexts: dict[int, list[zmq.Socket[bytes]]] = defaultdict(list)

    class Watched(zmq.Socket):  # type: ignore[type-arg]
        def __init__(self, context: zmq.Context, *args: Any, **kwargs: Any) -> None:
            super().__init__(context, *args, **kwargs)
            contexts[id(context)].append(self)

        def send(self, *args: Any, **kwargs: Any) -> Any:
            threads[id(self)].add(threading.get_ident())
            return super().send(*args, **kwargs)

        def recv(self, *args: Any, **kwargs: Any) -> Any:
            threads[id(self)].add(threading.get_ident())
            return super().recv(*args, **kwargs)

    def term(self: zmq.Context) -> None:
        open_at_term.extend(1 for socket in contexts[id(self)] if not socket.closed)
        usual(self)

    def note(method: Any) -> Any:
        def noted(self: Any, *args: Any, **more: Any) -> Any:
            threads[id(self)].add(threading.get_ident())
            return method(self, *args, **more)

        return noted

    for kind in (PlainDealer, PlainRouter):
        for name in ("tend", "send", "arrivals", "close"):
            monkeypatch.setattr(kind, name, note(getattr(kind, name)))
    for module in ("dealer", "router"):
        monkeypatch.setattr(f"ipc.{module}._HAS_EPOLL", plain)
    usual = zmq.Context.term
    monkeypatch.setattr(zmq.Context, "_socket_class", Watched)
    monkeypatch.setattr(zmq.Context, "term", term)
    running = InProcess()
    running.worker(step=0.001)
    with Client(running.address) as client:
        client.gather(["a", "b"], {"max_tokens": 5})
        client.submit("endless", ENDLESS).cancel()
    running.close()

    assert len(threads) == 4  # frontend, backend, worker, client
    assert {len(idents) for idents in threads.values()} == {1}
    assert open_at_term == []
    assert sum(map(len, contexts.values())) == (0 if plain else 4)


def test_the_clients_thread_reports_its_own_death(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(submit: Submit, now: float, *, timeout: float | None = None) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(client._connection._core, "submit", break_down)
    handle = client.submit("hi")
    with pytest.raises(RequestFailedError, match="closed"):
        handle.result(60)
