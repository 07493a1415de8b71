"""Clients, a broker and workers, all real but for the wire and the clock between them."""

import random
from collections import deque
from dataclasses import dataclass, field

from ipc.broker_clients import ClientDesk
from ipc.broker_clock import BrokerClock
from ipc.broker_core import BrokerCore
from ipc.broker_records import BrokerConfig, Send
from ipc.broker_workers import WorkerDesk
from ipc.client_answers import Answer, AnswerBuilder, parts_of
from ipc.client_core import ClientCore
from ipc.engine_driver import EngineDied, EngineDriver, EngineReady
from ipc.fake_engine import FakeEngine, FakeOptions, fake_text, fake_tokens
from ipc.joined_sends import joined
from ipc.messages import Accepted, Chunk, Done, Error, Submit
from ipc.served_engine import LoadedEngine
from ipc.token_ids import unpack_ids
from ipc.worker_core import WorkerCore

STEP = 0.05


def check_broker(core: BrokerCore) -> None:
    """Raise AssertionError if a rule of the broker's state does not hold."""
    jobs = list(core.jobs())
    for resource in ("requests", "tokens", "bytes"):
        inside = sum(getattr(job.amount, resource) for job in jobs)
        assert core.admission.used[resource] == inside, resource
    for job in jobs:
        assert (job in core.line) == (job.state == "queued")
        running_at = [w for w in core.workers.values() if w.jobs.get(job.run) is job]
        assert len(running_at) <= 1
        if job.state == "running":
            assert running_at == [job.worker]
        if job.state in ("queued", "held"):
            assert not running_at
    assert len(core.line) == sum(job.state == "queued" for job in jobs)
    for worker in core.workers.values():
        assert worker.load == sum(job.state == "running" for job in worker.jobs.values())
        assert all(job in jobs for job in worker.jobs.values())
    for peer, session in core.session_of.items():
        assert session.peer == peer
        assert core.sessions[(session.tenant, session.name)] is session


class Link:
    """A connection that may be cut; what is on its way is lost then."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self.up: deque[list[bytes]] = deque()
        self.down: deque[list[bytes]] = deque()
        self.peer = sim.new_peer()

    def cut(self) -> None:
        self.up.clear()
        self.down.clear()
        self.peer = self._sim.new_peer()


@dataclass(eq=False)
class SimClient:
    sim: "Simulation"
    core: ClientCore
    link: Link
    tenant: str = ""
    ends: dict[str, list[Done | Error]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    readers_asleep: set[str] = field(default_factory=set)
    builders: dict[str, AnswerBuilder] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    stopped: bool = False

    def submit(self, text: str, *, request_id: str | None = None, **fields: object) -> str:
        request_id = request_id or f"r{len(self.ends)}"
        timeout = fields.pop("timeout", None)
        params = {"max_tokens": 10, "seed": 1, **fields.pop("params", {})}
        submit = Submit(id=request_id, kind="text", text=text, params=params, **fields)
        self.ends[request_id] = []
        self.tokens[request_id] = []
        self.texts[request_id] = ""
        self.builders[request_id] = AnswerBuilder(request_id)
        self.core.submit(submit, self.sim.now, timeout=timeout)
        return request_id

    def step(self) -> None:
        if self.stopped:
            return
        while self.link.down:
            self.core.receive(self.link.down.popleft(), self.sim.now)
        if self.core.tick(self.sim.now):
            self.link.cut()
        for request_id, event in self.core.take_events():
            if isinstance(event, Chunk):
                tokens = unpack_ids(event.ids)
                self.tokens[request_id] += tokens
                self.texts[request_id] += "".join(piece.text for piece in event.pieces)
                for part in parts_of(event.pieces, event.ids):
                    self.builders[request_id].add(part)
                if request_id not in self.readers_asleep:
                    self.core.consume(request_id, len(tokens))
            elif isinstance(event, Accepted):
                self.seeds[request_id] = event.seed
            else:
                self.ends[request_id].append(event)
                if isinstance(event, Done):
                    self.answers[request_id] = self.builders[request_id].finish(event)
        self.link.up.extend(self.core.take_outgoing())

    def end_of(self, request_id: str) -> Done | Error:
        (end,) = self.ends[request_id]
        return end


@dataclass(eq=False)
class SimWorker:
    sim: "Simulation"
    core: WorkerCore
    link: Link
    engine: FakeEngine
    driver: EngineDriver
    stopped: bool = False  # the process: SIGSTOP
    hung: bool = False  # only its engine

    def step(self) -> None:
        if self.stopped or self.core.left:
            return
        while self.link.down:
            self.core.broker_frames(self.link.down.popleft(), self.sim.now)
        if not self.hung:
            try:
                self._drive()
            except RuntimeError as error:
                self.hung = True
                self.core.engine_event(EngineDied(str(error)), self.sim.now)
        if self.core.tick(self.sim.now):
            self.link.cut()
        self.link.up.extend(self.core.collect())

    def _drive(self) -> None:
        for command in self.core.take_commands(100):
            for event in self.driver.handle(command):
                self.core.engine_event(event, self.sim.now)
        if self.driver.num_runs:
            for stepped in (self.driver.step(self.sim.now), self.driver.account()):
                if stepped is not None:
                    self.core.engine_event(stepped, self.sim.now)


class Simulation:
    """Time is virtual and every choice comes from ``chance``."""

    def __init__(self, *, seed: int = 0, **config: object) -> None:
        self.chance = random.Random(seed)
        self.now = 100.0
        self._peers = 0
        self.config = BrokerConfig(**config)
        self.clients: list[SimClient] = []
        self.workers: list[SimWorker] = []
        self.broker_down = False
        self.broker_stopped = False
        self.start_broker()

    def new_peer(self) -> bytes:
        self._peers += 1
        return self._peers.to_bytes(5, "big")

    def start_broker(self) -> None:
        self.core = BrokerCore(self.config, now=self.now, epoch=f"epoch{self.now:.2f}")
        self.client_desk = ClientDesk(self.core)
        self.worker_desk = WorkerDesk(self.core)
        self.clock = BrokerClock(self.core)
        self.broker_down = False

    def kill_broker(self) -> None:
        self.broker_down = True
        for peer in (*self.clients, *self.workers):
            peer.link.cut()

    def restart_broker(self) -> None:
        self.kill_broker()
        self.start_broker()

    def client(self, tenant: str = "") -> SimClient:
        link = Link(self)
        core = ClientCore(now=self.now, name=f"client{link.peer.hex()}", spread=self.chance.random)
        client = SimClient(self, core, link, tenant)
        self.clients.append(client)
        return client

    def worker(self, *, rows: int = 4, tokens: int = 1, model: str = "fake") -> SimWorker:
        options = FakeOptions(rows=rows, tokens=tokens)
        engine = FakeEngine(options, clock=lambda: self.now, sleep=lambda seconds: None)
        loaded = LoadedEngine(engine, dict, (model,), rows, 2 * rows)
        core = WorkerCore(now=self.now, name=f"worker{self._peers}", drain_limit=5.0)
        worker = SimWorker(self, core, Link(self), engine, EngineDriver(loaded))
        core.engine_event(EngineReady((model,), 2 * rows), self.now)
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: SimWorker) -> None:
        self.workers.remove(worker)

    def kill_client(self, client: SimClient) -> None:
        self.clients.remove(client)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def step(self) -> None:
        self.now += STEP
        for peer in (*self.clients, *self.workers):
            peer.step()
        if self.broker_down or self.broker_stopped:
            return
        for worker in self.workers:
            while worker.link.up:
                frames = worker.link.up.popleft()
                self.execute(self.worker_desk.receive(worker.link.peer, frames, self.now))
        for client in self.clients:
            while client.link.up:
                frames = client.link.up.popleft()
                self.execute(
                    self.client_desk.receive(client.link.peer, frames, client.tenant, self.now)
                )
        self.execute(self.clock.tick(self.now))
        check_broker(self.core)

    def execute(self, sends: list[Send]) -> None:
        for side, peer, frames in joined(self.core, sends):
            links = [p.link for p in (self.clients if side == "front" else self.workers)]
            link = next((link for link in links if link.peer == peer), None)
            if link is not None:
                link.down.append(frames)
            elif side == "front":
                self.client_desk.unreachable(peer)
            else:
                self.worker_desk.unreachable(peer)


def asked(
    text: str, *, seconds: float = 0.0, **fields: object
) -> tuple[Simulation, SimWorker, SimClient, str]:
    """A worker, a client and its request, ``seconds`` after it asked."""
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit(text, **fields)
    sim.run(seconds)
    return sim, worker, client, request


def expected(text: str, count: int = 10, seed: int = 1) -> list[int]:
    return list(fake_tokens(text.encode(), seed, 0, 0, count))


def check_answer(client: SimClient, request_id: str, text: str, count: int = 10) -> None:
    end = client.end_of(request_id)
    assert isinstance(end, Done), end
    assert end.samples[0].reason == "length"
    assert client.tokens[request_id] == expected(text, count)
    assert client.texts[request_id] == fake_text(expected(text, count))


def check_error(client: SimClient, request_id: str, code: str, *, retryable: bool) -> Error:
    end = client.end_of(request_id)
    assert isinstance(end, Error)
    assert (end.code, end.retryable) == (code, retryable)
    return end
