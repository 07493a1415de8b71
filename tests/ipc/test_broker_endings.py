"""Requests that are ended: cancelled, out of time, drained."""

from simulation import Simulation, check_answer, check_error


def test_cancel_acts_wherever_the_request_is_and_any_number_of_times() -> None:
    sim = Simulation()
    client = sim.client()
    queued = client.submit("queued")
    sim.run(0.5)
    client.core.cancel(queued)
    client.core.cancel(queued)
    sim.run(0.5)
    assert client.end_of(queued).samples[0].reason == "cancelled"

    worker = sim.worker()
    running = client.submit("running", params={"max_tokens": 1000})
    sim.run(2)
    client.core.cancel(running)
    sim.run(0.5)
    client.core.cancel(running)
    assert client.end_of(running).samples[0].reason == "cancelled"
    assert worker.engine.samples == {}
    assert len(client.tokens[running]) > 5


def test_a_cancel_acts_although_the_run_was_just_lost_with_its_worker() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("lost", params={"max_tokens": 1000})
    sim.run(1)
    sim.kill_worker(worker)
    client.core.cancel(request)
    sim.run(5)

    assert client.end_of(request).samples[0].reason == "cancelled"


def test_a_timeout_ends_the_request_here_and_there() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("slow", params={"max_tokens": 10_000}, timeout=1.0)
    sim.run(3)

    check_error(client, request, "timeout", retryable=True)
    assert worker.engine.samples == {}
    assert list(sim.core.jobs()) == []


def test_a_deadline_holds_in_the_queue_and_while_running() -> None:
    sim = Simulation()
    client = sim.client()
    queued = client.submit("queued", params={"deadline": 0.5})
    sim.run(1)
    assert client.end_of(queued).samples[0].reason == "deadline"

    sim.worker()
    running = client.submit("running", params={"deadline": 1.0, "max_tokens": 10_000})
    sim.run(2)
    assert client.end_of(running).samples[0].reason == "deadline"
    assert len(client.tokens[running]) > 5


def test_a_deadline_holds_although_the_engine_hangs() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("hung", params={"deadline": 1.0, "max_tokens": 10_000})
    sim.run(0.5)
    worker.hung = True
    sim.run(4)

    assert client.end_of(request).samples[0].reason == "deadline"


def test_draining_finishes_what_fits_and_tells_the_rest() -> None:
    sim = Simulation(drain_limit=2.0)
    sim.worker()
    client = sim.client()
    short = client.submit("short", params={"max_tokens": 20})
    endless = client.submit("endless", params={"max_tokens": 10_000})
    sim.run(0.5)
    sim.execute(sim.core.drain(sim.now))
    sim.execute(sim.core.drain(sim.now))
    late = client.submit("late")
    sim.run(3)

    check_answer(client, short, "short", 20)
    end = check_error(client, endless, "draining", retryable=True)
    assert end.progress == len(client.tokens[endless])
    assert client.ends[late] == []  # refused with a retry-after: the client tries on
    assert list(sim.core.jobs()) == []


def test_a_draining_worker_finishes_its_runs_and_gets_no_more() -> None:
    sim = Simulation()
    first, client = sim.worker(), sim.client()
    running = client.submit("running", params={"max_tokens": 30})
    sim.run(0.5)
    first.core.drain(sim.now)
    second = sim.worker()
    sim.run(0.3)
    later = client.submit("later")
    sim.run(3)

    check_answer(client, running, "running", 30)
    check_answer(client, later, "later")
    assert first.core.left
    assert first.core.failure is None
    assert first.engine.num_tokens == 30
    assert second.engine.num_tokens == 10


def test_a_request_that_a_draining_worker_cannot_finish_goes_on_elsewhere() -> None:
    sim = Simulation()
    first, client = sim.worker(), sim.client()
    request = client.submit("long", resume=True, params={"max_tokens": 200})
    sim.run(0.5)
    first.core.drain(sim.now)
    sim.worker()
    sim.run(15)

    check_answer(client, request, "long", 200)
    assert first.core.left
