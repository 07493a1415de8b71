"""Workers, clients and connections that are lost, over a simulated wire."""

import pytest
from simulation import Simulation, asked, check_answer, check_error


def test_a_client_that_disappears_is_cancelled_within_two_heartbeats() -> None:
    sim, worker, client, _ = asked("ghost", params={"max_tokens": 10_000}, seconds=1)
    assert worker.engine.samples
    sim.kill_client(client)
    sim.run(2.0)

    assert worker.engine.samples == {}
    assert list(sim.core.jobs()) == []


def test_a_lost_workers_request_that_emitted_nothing_runs_elsewhere() -> None:
    sim = Simulation()
    first = sim.worker()
    first.hung = True
    client = sim.client()
    request = client.submit("again")
    sim.run(1)
    assert len(first.core.runs) == 1
    sim.kill_worker(first)
    sim.worker()
    sim.run(6)

    check_answer(client, request, "again")


def test_a_lost_workers_request_that_emitted_ends_with_how_far_it_came() -> None:
    sim, first, client, request = asked("half", params={"max_tokens": 1000}, seconds=1)
    sim.kill_worker(first)
    sim.worker()
    sim.run(6)

    end = check_error(client, request, "worker_lost", retryable=True)
    assert end.progress == len(client.tokens[request]) > 0


def test_with_resume_the_joined_answer_equals_an_undisturbed_one() -> None:
    sim, first, client, request = asked("resume", resume=True, params={"max_tokens": 60}, seconds=1)
    sim.kill_worker(first)
    sim.worker()
    sim.run(8)

    check_answer(client, request, "resume", 60)
    assert client.end_of(request).samples[0].usage["completion_tokens"] == 60


def test_a_request_that_kills_every_worker_is_given_up() -> None:
    sim = Simulation(max_attempts=2)
    client = sim.client()
    request = client.submit("poison", resume=True, params={"max_tokens": 10_000})
    for _ in range(2):
        worker = sim.worker()
        sim.run(2)
        sim.kill_worker(worker)
        sim.run(4)

    end = check_error(client, request, "worker_lost", retryable=False)
    assert "2 workers" in end.message


def test_a_worker_whose_engine_died_says_so_and_is_left_at_once() -> None:
    sim, _, client, request = asked("!raise", seconds=1)

    end = check_error(client, request, "worker_lost", retryable=True)
    assert "asks the engine to raise" in end.message
    assert sim.core.workers == {}


def test_what_a_hung_worker_says_when_it_wakes_disturbs_nothing() -> None:
    sim, first, client, request = asked("frozen", resume=True, params={"max_tokens": 60}, seconds=1)
    first.stopped = True
    sim.worker()
    sim.run(5)
    first.stopped = False
    sim.run(5)

    check_answer(client, request, "frozen", 60)
    assert first.core.runs == {}
    assert first.engine.samples == {}
    assert len(sim.core.workers) == 2


@pytest.mark.parametrize("who", ["client", "worker"])
def test_a_cut_connection_loses_and_doubles_nothing(who: str) -> None:
    sim, worker, client, request = asked("cut", params={"max_tokens": 100})
    for _ in range(4):
        sim.run(0.7)
        (client if who == "client" else worker).link.cut()
    sim.run(10)

    check_answer(client, request, "cut", 100)


def test_a_broker_that_stood_still_blames_nobody() -> None:
    sim, _, client, request = asked("pause", params={"max_tokens": 40}, seconds=0.5)
    sim.broker_stopped = True
    sim.run(2.5)
    sim.broker_stopped = False
    sim.run(6)

    check_answer(client, request, "pause", 40)


def test_a_client_fails_its_requests_when_no_broker_is_heard() -> None:
    sim = Simulation()
    sim.kill_broker()
    client = sim.client()
    request = client.submit("void")
    sim.run(40)

    check_error(client, request, "unreachable", retryable=True)
