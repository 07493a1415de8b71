"""Single messages lost, doubled or broken, and peers that come back at the wrong moment."""

from collections import deque

from simulation import SimClient, Simulation, asked, check_answer, check_error

from ipc import messages as m
from ipc.codec import decode, encode
from ipc.messages import Done


def lose_one(queue: deque[list[bytes]], cls: type, accept: tuple[type, ...]) -> bool:
    """Take the first message of a type out of a queue."""
    for frames in queue:
        if isinstance(decode(frames, accept), cls):
            queue.remove(frames)
            return True
    return False


def step_until_lost(
    sim: Simulation, queue: deque[list[bytes]], cls: type, accept: tuple[type, ...]
) -> None:
    for _ in range(200):
        sim.step()
        if lose_one(queue, cls, accept):
            return
    raise AssertionError(f"no {cls.__name__} came by")


def test_a_chunk_lost_on_the_way_to_the_client_is_sent_again() -> None:
    sim, _, client, request = asked("gap", params={"max_tokens": 40}, seconds=0.3)
    step_until_lost(sim, client.link.down, m.Chunk, m.TO_CLIENT)
    sim.run(6)

    check_answer(client, request, "gap", 40)


def test_a_chunk_lost_on_the_way_to_the_broker_is_sent_again() -> None:
    sim, worker, client, request = asked("gap", params={"max_tokens": 40}, seconds=0.3)
    lost = False
    for _ in range(20):
        worker.step()
        lost = lost or lose_one(worker.link.up, m.Chunk, m.FROM_WORKER)
        sim.step()
    assert lost
    sim.run(6)

    check_answer(client, request, "gap", 40)


def test_a_chunk_that_comes_twice_is_passed_on_once() -> None:
    sim, worker, client, request = asked("twice", params={"max_tokens": 40}, seconds=0.5)
    worker.step()
    chunks = [f for f in worker.link.up if isinstance(decode(f, m.FROM_WORKER), m.Chunk)]
    worker.link.up.extend(chunks)
    (job,) = sim.core.jobs()
    before = job.outbox.end
    while worker.link.up:
        frames = worker.link.up.popleft()
        sim.execute(sim.worker_desk.receive(worker.link.peer, frames, sim.now))
    assert job.outbox.end == before + len(chunks)
    sim.run(4)

    check_answer(client, request, "twice", 40)


def test_a_message_of_a_run_that_is_none_costs_that_run_and_no_other() -> None:
    sim, worker, client, broken = asked("broken", params={"max_tokens": 1000})
    whole = client.submit("whole", params={"max_tokens": 40})
    sim.run(0.5)
    job = next(job for job in sim.core.jobs() if job.submit.id == broken)
    piece = m.Piece(0, 1, "", logprobs=((1, -1.0, ()), (2, -1.0, ())))
    chunk = m.Chunk(broken, job.outbox.end, job.tokens, (piece,), job.run, b"\0\0\0\0")
    frames = encode(chunk)
    sim.execute(sim.worker_desk.receive(worker.link.peer, frames, sim.now))
    sim.run(4)

    assert "no message" in check_error(client, broken, "worker_lost", retryable=True).message
    check_answer(client, whole, "whole", 40)
    assert worker.engine.samples == {}


def test_an_ack_that_was_lost_does_not_keep_the_request_for_ever() -> None:
    sim, worker, client, request = asked("ack")
    for _ in range(200):
        client.step()
        if lose_one(client.link.up, m.Ack, m.FROM_CLIENT):
            client.link.cut()
            break
        sim.step()
    check_answer(client, request, "ack")
    assert len(list(sim.core.jobs())) == 1
    sim.run(3)

    assert list(sim.core.jobs()) == []
    assert worker.core.runs == {}
    assert len(sim.core.sessions) == 1


def test_a_cancel_that_was_lost_is_said_again_when_the_answer_goes_on() -> None:
    sim, worker, client, request = asked("timeout", params={"max_tokens": 10**6}, timeout=1.0)
    for _ in range(200):
        client.step()
        if lose_one(client.link.up, m.Cancel, m.FROM_CLIENT):
            break
        sim.step()
    check_error(client, request, "timeout", retryable=True)
    assert worker.engine.samples
    sim.run(2)

    assert worker.engine.samples == {}
    assert list(sim.core.jobs()) == []


def test_time_in_the_queue_counts_towards_the_deadline() -> None:
    sim = Simulation()
    client = sim.client()
    request = client.submit("waits", params={"deadline": 1.0, "max_tokens": 10**6})
    sim.run(0.7)
    sim.worker()
    sim.run(0.7)

    assert client.end_of(request).samples[0].reason == "deadline"
    assert client.tokens[request]


def test_a_lost_workers_prefixes_lead_nowhere() -> None:
    sim, worker, _, _ = asked("x" * 1000, seconds=2)
    assert len(sim.core.router) > 0
    sim.kill_worker(worker)
    sim.run(4)
    assert len(sim.core.router) == 0


def test_a_draining_worker_is_given_nothing() -> None:
    sim, worker, client, _ = asked("running", params={"max_tokens": 60}, seconds=0.5)
    worker.core.drain(sim.now)
    sim.run(0.2)
    later = client.submit("later")
    sim.run(0.5)

    job = next(job for job in sim.core.jobs() if job.submit.id == later)
    assert (job.state, job.attempts) == ("queued", 0)


def test_a_broker_that_stood_still_forgives_before_it_has_read_anything() -> None:
    sim, _, client, request = asked("pause", params={"max_tokens": 1000}, seconds=0.5)
    sim.now += 60
    sim.execute(sim.clock.tick(sim.now))

    assert (len(sim.core.workers), len(sim.core.sessions)) == (1, 1)
    assert client.ends[request] == []
    sim.now += 0.5
    sim.execute(sim.clock.tick(sim.now))
    assert len(sim.core.workers) == 1


def brought_back_after_two_restarts() -> tuple[Simulation, SimClient, str]:
    """An old attempt sleeps while a newer one gives the client more, then both come back."""
    sim = Simulation()
    old = sim.worker(tokens=1)
    client = sim.client()
    request = client.submit("forked", resume=True, window=1, params={"max_tokens": 90})
    sim.run(0.4)
    old.stopped = True
    assert 0 < len(client.tokens[request]) < 10
    new = sim.worker(tokens=3)
    sim.restart_broker()
    sim.run(4.5)
    assert len(client.tokens[request]) > 12
    new.stopped = client.stopped = True
    sim.restart_broker()
    old.stopped = False
    sim.run(0.7)
    assert len(sim.core.orphans) == 1
    client.stopped = new.stopped = False
    return sim, client, request


def test_an_older_attempt_that_comes_back_first_is_not_mixed_with_the_newer_one() -> None:
    sim, client, request = brought_back_after_two_restarts()
    sim.run(15)

    assert isinstance(client.end_of(request), Done)
    check_answer(client, request, "forked", 90)
    assert all(worker.engine.samples == {} for worker in sim.workers)
