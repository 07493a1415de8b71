"""kill -9 and SIGSTOP of worker, broker and client under load: every request ends, once."""

import random
import time
from pathlib import Path

import pytest
from processes import HEARTBEAT, ROOT, Process, Service, wait_until

from ipc.client import Answer, RequestFailedError, RequestHandle
from ipc.fake_engine import fake_tokens

TRUE_ERRORS = {"worker_lost", "unknown_request", "busy", "no_worker", "unreachable"}
LENGTH = 120


class Load:
    """Keeps some requests open; reads each to its end."""

    def __init__(self, service: Service, chance: random.Random) -> None:
        self._client = service.client(patience=60)
        self._chance = chance
        self._open: list[tuple[str, RequestHandle]] = []
        self._asked = 0
        self.answers = 0
        self.errors: list[RequestFailedError] = []

    def top_up(self, count: int = 16) -> None:
        while len(self._open) < count:
            word = f"code word {self._chance.getrandbits(60):x}"
            params = {"max_tokens": LENGTH, "seed": 5}
            resume = self._chance.random() < 0.5
            self._asked += 1
            linger = self._chance.choice([0.0, 0.1])
            handle = self._client.submit(word, params, resume=resume, linger=linger)
            handle.read_all()
            self._open.append((word, handle))

    def read(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._read_some()
            self.top_up()

    def finish(self) -> None:
        wait_until(lambda: self._read_some() or not self._open, 60, why="every request has ended")
        assert self.answers + len(self.errors) == self._asked
        assert {error.code for error in self.errors} <= TRUE_ERRORS

    def _read_some(self) -> None:
        still = []
        for word, handle in self._open:
            try:
                self._check(word, handle.result(timeout=0.005))
            except TimeoutError:
                still.append((word, handle))
            except RequestFailedError as error:
                self.errors.append(error)
        self._open = still

    def _check(self, word: str, answer: Answer) -> None:
        assert answer.finish_reason == "length"
        assert answer.token_ids == list(fake_tokens(word.encode(), 5, 0, 0, LENGTH))
        self.answers += 1


class Faults:
    """A service under load, and what may happen to it."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.chance = random.Random(seed)
        service.start_broker()
        self.workers = [service.start_worker() for _ in range(2)]
        self.load = Load(service, self.chance)
        service.wait_for_workers(2)
        self.victim = self.start_victim()

    def start_victim(self) -> Process:
        script = Path(__file__).with_name("victim.py")
        words = [str(script.relative_to(ROOT)), self.service.frontend]
        log = self.service.folder / f"victim{len(self.service.processes)}"
        victim = Process(words, log)
        self.service.processes.append(victim)
        return victim

    def kill_worker(self) -> None:
        which = self.chance.randrange(2)
        self.workers[which].kill()
        self.load.read(self.chance.uniform(0, 1))
        self.workers[which] = self.service.start_worker()

    def stop_worker(self) -> None:
        self.pause(self.chance.choice(self.workers))

    def kill_broker(self) -> None:
        assert self.service.broker is not None
        self.service.broker.kill()
        self.load.read(self.chance.uniform(0, 1))
        self.service.start_broker()

    def stop_broker(self) -> None:
        assert self.service.broker is not None
        self.pause(self.service.broker)

    def kill_client(self) -> None:
        self.victim.kill()
        self.victim = self.start_victim()

    def stop_client(self) -> None:
        self.pause(self.victim)

    def pause(self, process: Process) -> None:
        process.stop()
        self.load.read(self.chance.choice([2, 5, 8]) * HEARTBEAT)
        process.go_on()

    def run(self, kinds: list[str]) -> None:
        self.load.read(0.5)
        for kind in kinds:
            getattr(self, kind)()
            self.load.read(self.chance.uniform(0.2, 1.0))
        self.load.finish()
        self.victim.kill()
        self.service.wait_until_idle()
        assert self.load.answers > 10 * len(kinds)


KINDS = ["kill_worker", "stop_worker", "kill_broker", "stop_broker", "kill_client", "stop_client"]


def test_every_request_ends_once_through_kills_and_stops(service: Service) -> None:
    kinds = ["stop_worker", "kill_broker", "kill_worker", "stop_broker", "kill_client"]
    Faults(service, seed=1).run(kinds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_once_through_a_hundred_faults(service: Service, seed: int) -> None:
    chance = random.Random(seed)
    Faults(service, seed).run([chance.choice(KINDS) for _ in range(25)])
