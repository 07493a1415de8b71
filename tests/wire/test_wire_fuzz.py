"""Spoiled frames at the sockets of broker and worker: no crash, no growth, good ones unaffected."""

import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from processes import Service, wait_until

sys.path.append(str(Path(__file__).parents[1] / "ipc"))
from wire_examples import EXAMPLES, spoil

from ipc import messages as m
from ipc.bundle import bundled, unbundled
from ipc.codec import decode, encode
from ipc.fake_engine import fake_tokens
from ipc.frames import receive_frames
from ipc.limits import MAX_FRAMES
from ipc.token_ids import unpack_ids


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


class Attacker:
    """Throws spoiled messages from a few connections, reading whatever comes back."""

    def __init__(self, address: str, types: tuple[type, ...], seed: int) -> None:
        self.chance = random.Random(seed)
        alone = [encode(each) for each in EXAMPLES if isinstance(each, types)]
        self.good = [*alone, *bundled(alone)]
        self.context = zmq.Context()
        self.sockets = []
        for _ in range(4):
            socket = self.context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(address)
            self.sockets.append(socket)

    def throw(self, count: int) -> None:
        for number in range(count):
            socket = self.sockets[number % len(self.sockets)]
            frames = spoil(self.chance.choice(self.good), self.chance)
            while True:
                with suppress(zmq.Again):
                    socket.send_multipart(frames, zmq.NOBLOCK)
                    break
                time.sleep(0.001)
            while receive_frames(socket, MAX_FRAMES) is not None:
                pass

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
        self.context.term()


def attack_broker(service: Service, count: int, seed: int = 0) -> None:
    broker = service.start_broker()
    service.start_worker("fake:step=0.002")
    client = service.client()
    service.wait_for_workers(1)
    attackers = [
        Attacker(service.frontend, m.FROM_CLIENT, 2 * seed + 1),
        Attacker(service.backend, m.FROM_WORKER, 2 * seed + 2),
    ]
    try:
        before = 0
        rounds = 10
        for number in range(rounds):
            word = f"good {number}"
            handle = client.submit(word, {"max_tokens": 30, "seed": 1}, model="fake")
            for attacker in attackers:
                attacker.throw(count // (2 * rounds))
            assert handle.result(60).token_ids == list(fake_tokens(word.encode(), 1, 0, 0, 30))
            before = before or memory_kib(broker.popen.pid)
        assert memory_kib(broker.popen.pid) < before + 30_000
    finally:
        for attacker in attackers:
            attacker.close()
    service.wait_until_idle()
    assert broker.popen.poll() is None
    assert "Traceback" not in broker.log.read_text()


class RubbishBroker:
    """The test plays a broker that sends rubbish between good messages."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.bind(address)
        self.peer = b""

    def read(self, wait_ms: int) -> list[m.Message]:
        """Return what the worker says; welcome it whenever it says hello."""
        said = []
        while self.router.poll(wait_ms):
            peer, *frames = self.router.recv_multipart()
            for each in unbundled(frames) or [frames]:
                message = decode(each, m.FROM_WORKER)
                said.append(message)
                if isinstance(message, m.Hello):
                    self.peer = peer
                    self.send(encode(m.Welcome("e", 10.0)))
            wait_ms = 0
        return said

    def send(self, frames: list[bytes]) -> None:
        self.router.send_multipart([self.peer, *frames])

    def close(self) -> None:
        self.router.close()
        self.context.term()


def attack_worker(service: Service, count: int, seed: int = 3) -> None:
    broker = RubbishBroker(service.backend)
    worker = service.start_worker("fake")
    try:
        wait_until(lambda: broker.read(50) and broker.peer, why="the worker says hello")
        chance = random.Random(seed)
        alone = [encode(each) for each in EXAMPLES if isinstance(each, m.TO_WORKER)]
        good = [*alone, *bundled(alone)]
        for number in range(count):
            broker.send(spoil(chance.choice(good), chance))
            if number % 100 == 0:
                broker.read(0)
        ids = answer_after_rubbish(broker)
    finally:
        broker.close()
    assert ids == list(fake_tokens(b"hello", 1, 0, 0, 5))
    assert worker.popen.poll() is None
    assert "Traceback" not in worker.log.read_text()


def answer_after_rubbish(broker: RubbishBroker) -> list[int]:
    """Greet the worker as if nothing had been, and give it a run."""
    params = {"max_tokens": 5, "seed": 1}
    run = m.Run("f-1", "", "c", "r", "text", "hello", params=params, window=99)
    broker.send(encode(m.Welcome("e", 10.0)))
    broker.send(encode(run))
    ids: dict[int, tuple[int, ...]] = {}

    def ended() -> bool:
        for message in broker.read(50):
            if isinstance(message, m.Hello):  # its connection is a new one
                broker.send(encode(run))
                broker.send(encode(m.Credit("r", 0, 99, resend=True, run="f-1")))
            elif isinstance(message, m.Chunk) and message.run == "f-1":
                ids[message.seq] = unpack_ids(message.ids)
            elif isinstance(message, m.Done) and message.run == "f-1":
                return len(ids) == message.seq
        return False

    wait_until(ended, why="the run has ended")
    return [token for seq in sorted(ids) for token in ids[seq]]


def test_twenty_thousand_spoiled_messages_at_the_broker(service: Service) -> None:
    attack_broker(service, 20_000)


def test_spoiled_messages_at_the_worker(service: Service) -> None:
    attack_worker(service, 5_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_million_spoiled_messages_at_the_broker(service: Service, seed: int) -> None:
    attack_broker(service, 250_000, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_million_spoiled_messages_at_the_worker(service: Service, seed: int) -> None:
    attack_worker(service, 250_000, seed)
