"""A broker that is started again, over a simulated wire."""

from simulation import asked, check_answer, check_error


def test_running_requests_go_on_through_a_restart_of_the_broker() -> None:
    sim, worker, client, request = asked("restart", params={"max_tokens": 100}, seconds=1.5)
    came = len(client.tokens[request])
    sim.restart_broker()
    sim.run(12)

    assert 0 < came < 100
    check_answer(client, request, "restart", 100)
    assert worker.engine.num_tokens == 100  # it went on, it did not run twice


def test_a_finished_answer_survives_a_restart_before_it_arrived() -> None:
    sim, worker, client, request = asked("late", params={"max_tokens": 10}, seconds=0.3)
    client.stopped = True
    sim.run(0.9)
    assert worker.engine.samples == {}
    sim.restart_broker()
    client.stopped = False
    sim.run(6)

    check_answer(client, request, "late", 10)
    assert worker.engine.num_tokens == 10


def test_broker_and_worker_lost_together_are_reported_unless_it_may_resume() -> None:
    sim, worker, client, plain = asked("plain", params={"max_tokens": 200})
    resumed = client.submit("resumed", resume=True, params={"max_tokens": 200})
    sim.run(1)
    sim.kill_worker(worker)
    sim.restart_broker()
    sim.worker()
    sim.run(20)

    check_error(client, plain, "unknown_request", retryable=True)
    check_answer(client, resumed, "resumed", 200)


def test_a_cancel_holds_through_a_restart_of_the_broker() -> None:
    sim, worker, client, request = asked("stop", params={"max_tokens": 10_000}, seconds=1)
    sim.kill_broker()
    client.core.cancel(request)
    sim.run(1)
    sim.start_broker()
    sim.run(6)

    assert client.end_of(request).samples[0].reason == "cancelled"
    assert worker.engine.samples == {}


def test_runs_that_nobody_claims_after_a_restart_are_ended() -> None:
    sim, worker, client, _ = asked("orphan", params={"max_tokens": 10_000}, seconds=1)
    sim.kill_client(client)
    sim.restart_broker()
    sim.run(6)

    assert worker.engine.samples == {}
    assert worker.core.runs == {}
    assert sim.core.orphans == {}
