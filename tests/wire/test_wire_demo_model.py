"""The wire with the real engine: every answer is the engine's own, whatever happened to it."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from processes import Process, Service, wait_until
from visitors import crowd

from ipc.client import Answer, AsyncClient


class DemoService:
    """A broker with one exact worker, and the same engine here to compare with."""

    def __init__(self, service: Service) -> None:
        os.environ.setdefault("OCTAVO_BLAS", "reference")
        self.service = service
        service.start_broker()
        self.worker = self.start_worker()
        from engine import Engine, SamplingParams

        self.engine = Engine.load("demo", max_rows=8, exact=True)
        self.make_params = SamplingParams
        service.client()
        wait_until(service.worker_figures, 120, why="the worker has loaded its model")

    def start_worker(self) -> Process:
        return self.service.start_worker("demo", "--exact", "--max-rows", "8")

    def answers(self, questions: Sequence[tuple[str, int]], tokens: int) -> dict[str, list[int]]:
        """Return the engine's answers, in its own order and batches."""
        names = {}
        for prompt, seed in questions:
            params = self.make_params(
                max_tokens=tokens, seed=seed, temperature=1.0, ignore_eos=True
            )
            names[self.engine.submit(prompt, params)] = prompt
        found: dict[str, list[int]] = {prompt: [] for prompt, _ in questions}
        for delta in self.run():
            found[names[delta.request_id]] += delta.token_ids
        return found

    def run(self) -> list[Any]:
        deltas = []
        while self.engine.has_work:
            deltas += self.engine.step()
        return deltas

    def crowd(self, *, clients: int, requests: int, tokens: int, seed: int = 0) -> None:
        crowd(
            self.service,
            lambda questions: self.answers(questions, tokens),
            clients=clients,
            requests=requests,
            tokens=tokens,
            seed=seed,
        )
        wait_until(self.free_again, why="all blocks and slots are back")

    def free_again(self) -> bool:
        """Whether all blocks and slots are free or cached, to the last one."""
        (figures,) = self.service.worker_figures()
        return all(
            figures[f"free_{what}"] + figures[f"cached_{what}"] == figures[f"total_{what}"]
            for what in ("blocks", "slots")
        )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    service = Service(tmp_path_factory.mktemp("d"))
    service.heartbeat = 1.5  # 64 clients in one process: none is gone for being slow to get a turn
    try:
        yield DemoService(service)
    finally:
        service.close()


def test_a_crowds_answers_are_the_engines_own(demo: DemoService) -> None:
    demo.crowd(clients=4, requests=3, tokens=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_of_64_clients_with_50_requests_each(demo: DemoService, seed: int) -> None:
    """Ten of each client's requests for each seed, to be run one by one if need be."""
    demo.crowd(clients=64, requests=10, tokens=8, seed=seed)


def test_a_prompts_log_probabilities_are_the_engines_own(demo: DemoService) -> None:
    prompt = "It was a dark and stormy night; the rain fell in torrents. " * 3
    params = {"max_tokens": 3, "seed": 3, "temperature": 0.7, "prompt_logprobs": 2, "n": 2}
    demo.engine.submit(prompt, demo.make_params(**params))
    (own, *others) = [d.prompt_logprobs for d in demo.run() if d.prompt_logprobs is not None]
    expected = [None if each is None else (each.token_id, each.logprob, each.top) for each in own]
    assert others == [own]
    assert expected.count(None) == 1

    assert demo.service.client().ask(prompt, params).prompt_logprobs == expected

    async def ask() -> Answer:
        async with AsyncClient(demo.service.frontend) as client:
            return await client.ask(prompt, params)

    assert asyncio.run(ask()).prompt_logprobs == expected
    assert demo.service.client().ask(prompt, {"max_tokens": 1}).prompt_logprobs is None


def test_an_answer_that_went_on_elsewhere_equals_an_undisturbed_one(demo: DemoService) -> None:
    params = {
        "max_tokens": 24,
        "seed": 11,
        "temperature": 0.9,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "min_tokens": 20,
        "stop": ["zzzz"],
    }
    prompt = "The old man walked down to the sea and"
    handle = demo.service.client().submit(prompt, params, resume=True)
    text, ids = "", []
    killed = False
    for part in handle:
        text += part.text
        ids += part.token_ids
        if len(ids) >= 6 and not killed:
            killed = True
            demo.start_worker()
            demo.worker.kill()
    assert killed

    demo.engine.submit(prompt, demo.make_params(**params))
    undisturbed = demo.run()
    assert ids == [token for delta in undisturbed for token in delta.token_ids]
    assert text == "".join(delta.text for delta in undisturbed)
    answer = handle.result()
    assert answer.finish_reason == undisturbed[-1].finish_reason
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == len(ids)
    assert answer.usage["prompt_tokens"] == undisturbed[-1].usage.prompt_tokens
