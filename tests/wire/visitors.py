"""Clients that come at once and behave as clients do: read, stop, leave, dawdle, vanish."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from processes import Service, wait_until

from ipc.client import Answer, Client

Oracle = Callable[[Sequence[tuple[str, int]]], Mapping[str, Sequence[int]]]
WAYS = ("read", "read", "read", "resume", "gather", "cancel", "leave", "slow", "disconnect")


class Visitor(threading.Thread):
    """One client: asks its questions one after another, each in a way of its own."""

    def __init__(
        self, service: Service, number: int, count: int, max_tokens: int, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._chance = random.Random(1000 * seed + number)
        self._max_tokens = max_tokens
        self.questions = [
            (f"The code word is {self._chance.getrandbits(48):x}. Again:", 1000 * number + n)
            for n in range(count)
        ]
        self.whole: list[tuple[str, list[int]]] = []
        self.partial: list[tuple[str, list[int]]] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        client = Client(self._service.frontend, patience=120)
        try:
            for prompt, seed in self.questions:
                client = self._ask(client, prompt, seed)
        except BaseException as error:
            self.failures.append(error)
        finally:
            client.close()

    def _ask(self, client: Client, prompt: str, seed: int) -> Client:
        params = {"max_tokens": self._max_tokens, "seed": seed, "temperature": 1.0}
        params["ignore_eos"] = True
        way = self._chance.choice(WAYS)
        if way == "gather":
            (answer,) = client.gather([prompt], params)
            self._keep(prompt, answer)
        elif way in ("read", "resume"):
            self._keep(prompt, client.ask(prompt, params, resume=way == "resume"))
        elif way == "slow":
            handle = client.submit(prompt, params, window=2)
            for _part in handle:
                time.sleep(self._chance.uniform(0, 0.02))
            self._keep(prompt, handle.result())
        elif way == "cancel":
            handle = client.submit(prompt, params)
            time.sleep(self._chance.uniform(0, 0.1))
            handle.cancel()
            handle.cancel()
            self._keep(prompt, handle.result())
        elif way == "leave":
            handle = client.submit(prompt, params)
            for _part in handle:
                break
            self._keep(prompt, handle.result())
        else:
            client.submit(prompt, params).read_all()
            time.sleep(self._chance.uniform(0, 0.1))
            client.close()
            return Client(self._service.frontend, patience=120)
        return client

    def _keep(self, prompt: str, answer: Answer) -> None:
        kept = self.whole if answer.finish_reason == "length" else self.partial
        assert answer.finish_reason in ("length", "cancelled")
        kept.append((prompt, answer.token_ids))


def crowd(
    service: Service,
    oracle: Oracle,
    *,
    clients: int,
    requests: int,
    tokens: int,
    seed: int = 0,
) -> None:
    """Let them all in at once, then compare every answer with the oracle's."""
    service.client()
    wait_until(service.worker_figures, 60, why="a worker is there")
    visitors = [Visitor(service, number, requests, tokens, seed) for number in range(clients)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(3000)
        assert not visitor.failures, visitor.failures
    expected = oracle([question for visitor in visitors for question in visitor.questions])
    for visitor in visitors:
        for prompt, ids in visitor.whole:
            assert ids == list(expected[prompt])
        for prompt, ids in visitor.partial:
            assert ids == list(expected[prompt])[: len(ids)]
    assert sum(len(visitor.whole) for visitor in visitors) > clients * requests / 4
    service.wait_until_idle()
