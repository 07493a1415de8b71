"""Spoiled frames at broker, worker and client: no crash, no growth, good ones unaffected."""

import random

import pytest
from simulation import SimClient, Simulation, check_broker
from test_broker_simulated import check_answer
from wire_examples import EXAMPLES, spoil

from ipc import messages as m
from ipc.bundle import bundled
from ipc.codec import encode

HOSTILE_PEERS = [bytes([0xEE, number, 0, 0, 0]) for number in range(8)]


def examples(types: tuple[type, ...]) -> list[list[bytes]]:
    hellos: list[m.Message] = [
        m.Hello(role="client", name="evil"),
        m.Hello(role="worker", name="evil", models=("evil",), capacity=3),
        m.Submit(id="r", kind="text", text="hi"),
    ]
    alone = [encode(each) for each in (*EXAMPLES, *hellos) if isinstance(each, types)]
    return [*alone, *bundled(alone), *bundled(alone[::-1])]


def attack(count: int, seed: int) -> None:
    chance = random.Random(seed)
    sim = Simulation(seed=seed, worker_wait=1e6)
    worker, client = sim.worker(), sim.client()
    to_front, to_back = examples(m.FROM_CLIENT), examples(m.FROM_WORKER)
    to_worker, to_client = examples(m.TO_WORKER), examples(m.TO_CLIENT)
    asked: list[tuple[SimClient, str]] = []
    for number in range(count):
        peer = chance.choice(HOSTILE_PEERS)
        if number % 2:
            sends = sim.client_desk.receive(peer, mutate(to_front, chance), "evil", sim.now)
        else:
            sends = sim.worker_desk.receive(peer, mutate(to_back, chance), sim.now)
        # a hostile peer gets answers, and what the broker wants of others is carried out
        sim.execute([send for send in sends if send.peer not in HOSTILE_PEERS])
        worker.core.broker_frames(mutate(to_worker, chance), sim.now)
        client.core.receive(mutate(to_client, chance), sim.now)
        if number % 500 == 0:
            asked.append((client, client.submit(f"good {number}", model="fake")))
            sim.run(1)
        if number % 97 == 0:
            sim.step()
            check_broker(sim.core)
            assert len(sim.core.sessions) <= 20
            assert len(sim.core.workers) <= 20
    sim.run(30)
    for number, (client, request) in enumerate(asked):
        check_answer(client, request, f"good {500 * number}")
    assert list(sim.core.jobs()) == []
    assert sim.core.orphans == {}
    assert len(sim.core.sessions) == len(sim.core.workers) == 1
    assert worker.core.runs == {}
    assert worker.engine.samples == {}


def mutate(good: list[list[bytes]], chance: random.Random) -> list[bytes]:
    frames = chance.choice(good)
    return frames if chance.random() < 0.05 else spoil(frames, chance)


def test_twenty_thousand_spoiled_frames_change_nothing_for_good_clients() -> None:
    attack(20_000, seed=1)


@pytest.mark.soak
def test_a_million_spoiled_frames_change_nothing_for_good_clients() -> None:
    attack(1_000_000, seed=2)
