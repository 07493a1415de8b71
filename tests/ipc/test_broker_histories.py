"""Random histories of faults: every request ends once, in the right answer or a true error."""

import itertools

import pytest
from simulation import SimClient, Simulation, SimWorker

from ipc.fake_engine import fake_text, fake_tokens
from ipc.messages import Done, Error

TRUE_ERRORS = {
    "worker_lost": True,
    "unknown_request": True,
    "unreachable": True,
    "timeout": True,
    "busy": True,
    "no_worker": True,
    "cancelled": False,
}


class History:
    """A simulation, what was asked of it, and ways to disturb it."""

    def __init__(self, seed: int) -> None:
        self.sim = Simulation(seed=seed, worker_wait=20.0, max_attempts=100)
        self.chance = self.sim.chance
        self.numbers = itertools.count()
        self.asked: dict[tuple[SimClient, str], tuple[str, int]] = {}
        self.cancelled: set[tuple[SimClient, str]] = set()
        for _ in range(3):
            self.sim.client()
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        self.sim.worker(rows=self.chance.randint(1, 4), tokens=self.chance.randint(1, 3))

    def submit(self) -> None:
        client = self.chance.choice(self.sim.clients)
        count = self.chance.randint(1, 60)
        text = f"code word {self.chance.getrandbits(40):x}"
        request = client.submit(
            text,
            request_id=f"r{next(self.numbers)}",
            params={"max_tokens": count},
            resume=self.chance.random() < 0.5,
            window=self.chance.choice([1, 4, 1024]),
            linger=self.chance.choice([0.0, 0.1, 1.0]),
        )
        self.asked[(client, request)] = (text, count)

    def cancel(self) -> None:
        if self.asked:
            client, request = self.chance.choice(list(self.asked))
            self.cancelled.add((client, request))
            client.core.cancel(request)

    def cut(self) -> None:
        peers: list[SimClient | SimWorker] = [*self.sim.clients, *self.sim.workers]
        self.chance.choice(peers).link.cut()

    def stop_somebody(self) -> None:
        peers: list[SimClient | SimWorker] = [*self.sim.clients, *self.sim.workers]
        peer = self.chance.choice(peers)
        peer.stopped = not peer.stopped

    def kill_worker(self) -> None:
        self.sim.kill_worker(self.chance.choice(self.sim.workers))
        self.add_worker()

    def kill_client(self) -> None:
        client = self.chance.choice(self.sim.clients)
        self.sim.kill_client(client)
        self.asked = {key: value for key, value in self.asked.items() if key[0] is not client}
        self.sim.client()

    def restart_broker(self) -> None:
        self.sim.kill_broker()
        self.sim.run(self.chance.choice([0.1, 0.5, 2.0]))
        self.sim.start_broker()

    def stop_broker(self) -> None:
        self.sim.broker_stopped = True
        self.sim.run(self.chance.choice([0.3, 1.5, 4.0]))
        self.sim.broker_stopped = False

    def disturb(self) -> None:
        events = (
            *[(self.submit, 12), (self.cancel, 2), (self.cut, 3), (self.stop_somebody, 2)],
            *[(self.kill_worker, 1), (self.kill_client, 1), (self.restart_broker, 1)],
            (self.stop_broker, 1),
        )
        (event,) = self.chance.choices([e for e, _ in events], [weight for _, weight in events])
        event()
        self.sim.run(self.chance.choice([0.0, 0.05, 0.2, 1.0]))

    def heal(self) -> None:
        for peer in (*self.sim.clients, *self.sim.workers):
            peer.stopped = False
        self.sim.run(60)

    def check(self) -> None:
        for (client, request), (text, count) in self.asked.items():
            assert len(client.ends[request]) == 1, (request, client.ends[request])
            end = client.end_of(request)
            right = list(fake_tokens(text.encode(), 1, 0, 0, count))
            came = client.tokens[request]
            assert came == right[: len(came)]
            assert client.texts[request] == fake_text(came)
            if isinstance(end, Error):
                assert TRUE_ERRORS.get(end.code) == end.retryable, end
                continue
            assert isinstance(end, Done)
            if end.samples[0].reason == "length":
                assert came == right
            else:
                assert end.samples[0].reason == "cancelled"
                assert (client, request) in self.cancelled
        assert list(self.sim.core.jobs()) == []
        assert self.sim.core.admission.used["requests"] == 0
        assert self.sim.core.orphans == {}
        for worker in self.sim.workers:
            assert worker.engine.samples == {}
            assert worker.core.runs == {}


def run_history(seed: int, events: int = 60) -> None:
    history = History(seed)
    for _ in range(events):
        history.disturb()
    history.heal()
    history.check()


@pytest.mark.parametrize("seed", range(30))
def test_every_request_ends_once_and_truly_whatever_happens(seed: int) -> None:
    run_history(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_every_request_ends_once_and_truly_in_five_hundred_long_histories(seed: int) -> None:
    run_history(seed, events=200)
