"""Spoiled frames at the sockets of broker and worker: no crash, no growth, good ones unaffected."""

import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from processes import Service

sys.path.append(str(Path(__file__).parents[1] / "ipc"))
from wire_examples import EXAMPLES, spoil

from ipc import messages as m
from ipc.addresses import receive
from ipc.codec import encode
from ipc.fake_engine import fake_tokens
from ipc.limits import MAX_FRAMES


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
        self.good = [encode(each) for each in EXAMPLES if isinstance(each, types)]
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
            while receive(socket, MAX_FRAMES) is not None:
                pass

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
        self.context.term()


def attack_broker(service: Service, count: int) -> None:
    broker = service.start_broker()
    service.start_worker("fake:step=0.002")
    client = service.client()
    service.wait_for_workers(1)
    attackers = [
        Attacker(service.frontend, m.FROM_CLIENT, 1),
        Attacker(service.backend, m.FROM_WORKER, 2),
    ]
    before = 0
    rounds = 10
    for number in range(rounds):
        word = f"good {number}"
        handle = client.submit(word, {"max_tokens": 30, "seed": 1}, model="fake")
        for attacker in attackers:
            attacker.throw(count // (2 * rounds))
        assert handle.result(20).token_ids == list(fake_tokens(word.encode(), 1, 0, 0, 30))
        before = before or memory_kib(broker.popen.pid)
    assert memory_kib(broker.popen.pid) < before + 30_000
    for attacker in attackers:
        attacker.close()
    service.wait_until_idle()
    assert broker.popen.poll() is None
    assert "Traceback" not in broker.log.read_text()


def attack_worker(service: Service, count: int) -> None:
    """The test plays a broker that sends rubbish between good messages."""
    chance = random.Random(3)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(service.backend)
    worker = service.start_worker("fake")
    good = [encode(each) for each in EXAMPLES if isinstance(each, m.TO_WORKER)]
    peer, *_ = router.recv_multipart()
    router.send_multipart([peer, *encode(m.Welcome("e", 10.0))])
    run = m.Run(
        *("e-1", "", "c", "r", "text", "hello"), params={"max_tokens": 5, "seed": 1}, window=99
    )
    for number in range(count):
        router.send_multipart([peer, *spoil(chance.choice(good), chance)])
        if number % 100 == 0:
            while router.poll(0):
                router.recv_multipart()
    router.send_multipart([peer, *encode(run)])
    ids = b""
    while b"done" not in (frames := router.recv_multipart())[1]:
        if b"chunk" in frames[1] and b"e-1" in frames[1]:
            ids += frames[2]
    assert len(ids) >= 5 * 4
    assert worker.popen.poll() is None
    assert "Traceback" not in worker.log.read_text()
    router.close()
    context.term()


def test_twenty_thousand_spoiled_messages_at_the_broker(service: Service) -> None:
    attack_broker(service, 20_000)


def test_spoiled_messages_at_the_worker(service: Service) -> None:
    attack_worker(service, 5_000)


@pytest.mark.soak
def test_a_million_spoiled_messages_at_the_broker(service: Service) -> None:
    attack_broker(service, 1_000_000)


@pytest.mark.soak
def test_a_million_spoiled_messages_at_the_worker(service: Service) -> None:
    attack_worker(service, 1_000_000)
