"""Whole lives of requests through real cores over a simulated wire."""

import pytest
from simulation import SimClient, Simulation

from ipc.admission import AdmissionLimits, Amount
from ipc.codec import encode
from ipc.fake_engine import fake_text, fake_tokens
from ipc.messages import Done, Error, Submit


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


def test_a_request_is_answered_and_forgotten_everywhere() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("hello")
    sim.run(2)

    check_answer(client, request, "hello")
    assert list(sim.core.jobs()) == []
    assert sim.core.admission.used["requests"] == 0
    assert worker.core.runs == {}
    assert worker.engine.samples == {}
    assert client.core.num_open == 0


def test_a_request_before_any_worker_waits_for_one() -> None:
    sim = Simulation(worker_wait=5.0)
    client = sim.client()
    request = client.submit("early")
    sim.run(2)
    sim.worker()
    sim.run(2)

    check_answer(client, request, "early")


def test_a_request_that_no_worker_comes_for_ends_with_no_worker() -> None:
    sim = Simulation(worker_wait=2.0)
    client = sim.client()
    request = client.submit("lonely")
    sim.run(4)

    check_error(client, request, "no_worker", retryable=True)


def test_samples_of_one_request_do_not_mix() -> None:
    sim = Simulation()
    sim.worker(rows=3)
    client = sim.client()
    request = client.submit("many", params={"n": 3})
    sim.run(2)

    end = client.end_of(request)
    assert isinstance(end, Done)
    assert [(s.index, s.reason) for s in end.samples] == [
        (0, "length"),
        (1, "length"),
        (2, "length"),
    ]
    assert sorted(client.tokens[request]) == sorted(
        token for index in range(3) for token in fake_tokens(b"many", 1, index, 0, 10)
    )


def test_submitting_the_same_id_again_changes_nothing() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("twice")
    sim.run(0.3)
    submit = Submit(id=request, kind="text", text="twice", params={"max_tokens": 10})
    client.link.up.append(encode(submit))
    sim.run(2)

    check_answer(client, request, "twice")
    assert worker.engine.num_tokens == 10


def test_an_id_that_was_acknowledged_is_spent() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("once")
    sim.run(2)
    del client.ends[request]
    client.submit("once", request_id=request)
    sim.run(1)

    check_error(client, request, "already_finished", retryable=False)
    assert worker.engine.num_tokens == 10


def test_beyond_the_limits_the_answer_is_busy_at_once_and_the_client_tries_again() -> None:
    limits = AdmissionLimits(total=Amount(2, 10_000, 10_000), tenant=Amount(2, 10_000, 10_000))
    sim = Simulation(limits=limits)
    sim.worker(rows=1)
    client = sim.client()
    requests = [client.submit(f"crowd {i}") for i in range(6)]
    sim.run(0.3)
    assert sim.core.admission.used["requests"] == 2  # queued and running alike are counted

    sim.run(20)
    for i, request in enumerate(requests):
        check_answer(client, request, f"crowd {i}")


def test_a_request_that_can_never_fit_is_too_large() -> None:
    limits = AdmissionLimits(total=Amount(9, 100, 10_000), tenant=Amount(9, 100, 10_000))
    sim = Simulation(limits=limits)
    sim.worker()
    client = sim.client()
    request = client.submit("big", params={"max_tokens": 1000})
    sim.run(1)

    end = check_error(client, request, "too_large", retryable=False)
    assert "1001 tokens" in end.message
    assert "100" in end.message


def test_the_tenants_limit_stops_a_tenant_before_the_brokers_does() -> None:
    limits = AdmissionLimits(total=Amount(9, 9999, 9999), tenant=Amount(1, 9999, 9999))
    sim = Simulation(limits=limits)
    client = sim.client()
    client.submit("one")
    client.submit("two")
    sim.run(0.2)

    assert sim.core.admission.used["requests"] == 1


def test_a_slow_reader_pauses_its_own_sequence_and_no_other() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    slow = client.submit("slow", window=4, params={"max_tokens": 40})
    client.readers_asleep.add(slow)
    quick = client.submit("quick", params={"max_tokens": 40})
    sim.run(3)

    assert len(client.tokens[slow]) == 4
    check_answer(client, quick, "quick", 40)
    steps = worker.engine.num_rows
    sim.run(2)
    assert worker.engine.num_rows == steps  # nothing computes for it meanwhile

    client.readers_asleep.clear()
    client.core.consume(slow, 4)
    sim.run(4)
    check_answer(client, slow, "slow", 40)


def test_a_reader_that_never_reads_is_cancelled_in_the_end() -> None:
    sim = Simulation(stall_limit=3.0)
    worker, client = sim.worker(), sim.client()
    request = client.submit("asleep", window=4)
    client.readers_asleep.add(request)
    sim.run(2)
    assert client.ends[request] == []
    sim.run(3)

    end = check_error(client, request, "slow_reader", retryable=False)
    assert end.progress == 4
    assert worker.engine.samples == {}
    assert worker.core.runs == {}


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


def test_a_client_that_disappears_is_cancelled_within_two_heartbeats() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    client.submit("ghost", params={"max_tokens": 10_000})
    sim.run(1)
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
    sim = Simulation()
    first = sim.worker()
    client = sim.client()
    request = client.submit("half", params={"max_tokens": 1000})
    sim.run(1)
    sim.kill_worker(first)
    sim.worker()
    sim.run(6)

    end = check_error(client, request, "worker_lost", retryable=True)
    assert end.progress == len(client.tokens[request]) > 0


def test_with_resume_the_joined_answer_equals_an_undisturbed_one() -> None:
    sim = Simulation()
    first = sim.worker()
    client = sim.client()
    request = client.submit("resume", resume=True, params={"max_tokens": 60})
    sim.run(1)
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
    sim = Simulation()
    sim.worker()
    client = sim.client()
    request = client.submit("!raise")
    sim.run(1)

    end = check_error(client, request, "worker_lost", retryable=True)
    assert "asks the engine to raise" in end.message
    assert sim.core.workers == {}


def test_what_a_hung_worker_says_when_it_wakes_disturbs_nothing() -> None:
    sim = Simulation()
    first = sim.worker()
    client = sim.client()
    request = client.submit("frozen", resume=True, params={"max_tokens": 60})
    sim.run(1)
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
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("cut", params={"max_tokens": 100})
    for _ in range(4):
        sim.run(0.7)
        (client if who == "client" else worker).link.cut()
    sim.run(10)

    check_answer(client, request, "cut", 100)


def test_running_requests_go_on_through_a_restart_of_the_broker() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("restart", params={"max_tokens": 100})
    sim.run(1.5)
    came = len(client.tokens[request])
    sim.restart_broker()
    sim.run(12)

    assert 0 < came < 100
    check_answer(client, request, "restart", 100)
    assert worker.engine.num_tokens == 100  # it went on, it did not run twice


def test_a_finished_answer_survives_a_restart_before_it_arrived() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("late", params={"max_tokens": 10})
    sim.run(0.3)
    client.stopped = True
    sim.run(0.9)
    assert worker.engine.samples == {}
    sim.restart_broker()
    client.stopped = False
    sim.run(6)

    check_answer(client, request, "late", 10)
    assert worker.engine.num_tokens == 10


def test_broker_and_worker_lost_together_are_reported_unless_it_may_resume() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    plain = client.submit("plain", params={"max_tokens": 200})
    resumed = client.submit("resumed", resume=True, params={"max_tokens": 200})
    sim.run(1)
    sim.kill_worker(worker)
    sim.restart_broker()
    sim.worker()
    sim.run(20)

    check_error(client, plain, "unknown_request", retryable=True)
    check_answer(client, resumed, "resumed", 200)


def test_a_cancel_holds_through_a_restart_of_the_broker() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("stop", params={"max_tokens": 10_000})
    sim.run(1)
    sim.kill_broker()
    client.core.cancel(request)
    sim.run(1)
    sim.start_broker()
    sim.run(6)

    assert client.end_of(request).samples[0].reason == "cancelled"
    assert worker.engine.samples == {}


def test_runs_that_nobody_claims_after_a_restart_are_ended() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    client.submit("orphan", params={"max_tokens": 10_000})
    sim.run(1)
    sim.kill_client(client)
    sim.restart_broker()
    sim.run(6)

    assert worker.engine.samples == {}
    assert worker.core.runs == {}
    assert sim.core.orphans == {}


def test_a_broker_that_stood_still_blames_nobody() -> None:
    sim = Simulation()
    sim.worker()
    client = sim.client()
    request = client.submit("pause", params={"max_tokens": 40})
    sim.run(0.5)
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


def test_a_refusal_of_the_engine_reaches_the_client_and_is_not_retried() -> None:
    sim = Simulation()
    worker, client = sim.worker(), sim.client()
    request = client.submit("!refuse")
    sim.run(1)

    end = check_error(client, request, "bad_request", retryable=False)
    assert "asks to be refused" in end.message
    assert worker.core.runs == {}


def test_a_failed_sample_is_an_answer_with_its_error() -> None:
    sim = Simulation()
    sim.worker()
    client = sim.client()
    request = client.submit("!fail")
    sim.run(1)

    end = client.end_of(request)
    assert (end.samples[0].reason, end.samples[0].error) == ("error", "the prompt asks to fail")


def test_each_model_is_served_by_those_who_have_it() -> None:
    sim = Simulation()
    red, blue = sim.worker(model="red"), sim.worker(model="blue")
    client = sim.client()
    sim.run(0.5)
    to_blue = client.submit("hello", model="blue")
    unclear = client.submit("which")
    unknown = client.submit("what", model="green")
    sim.run(1)

    check_answer(client, to_blue, "hello")
    assert (red.engine.num_tokens, blue.engine.num_tokens) == (0, 10)
    assert "blue, red" in check_error(client, unclear, "unknown_model", retryable=False).message
    assert "blue, red" in check_error(client, unknown, "unknown_model", retryable=False).message


def test_prompts_that_begin_alike_meet_at_one_worker_until_it_is_full() -> None:
    sim = Simulation()
    workers = [sim.worker(rows=2), sim.worker(rows=2)]
    client = sim.client()
    sim.run(0.5)
    shared = "You are a helpful assistant. " * 20
    for number in range(3):
        client.submit(f"{shared} Question {number}")
        sim.run(2)
    busy = [worker.engine.num_tokens for worker in workers]
    assert sorted(busy) == [0, 30]

    for number in range(8):  # twice what one of them holds
        client.submit(f"{shared} Hot question {number}", params={"max_tokens": 50})
    sim.run(8)
    assert all(
        worker.engine.num_tokens - before for worker, before in zip(workers, busy, strict=True)
    )
    assert all(isinstance(client.end_of(request), Done) for request in client.ends)


def test_another_tenants_prefix_is_not_followed() -> None:
    sim = Simulation()
    workers = [sim.worker(), sim.worker()]
    ann, bob = sim.client("ann"), sim.client("bob")
    sim.run(0.5)
    shared = "You are a helpful assistant. " * 20
    blocker = ann.submit(shared, params={"max_tokens": 1000})
    sim.run(0.5)
    bob.submit(shared)
    sim.run(2)
    assert sorted(worker.engine.num_tokens > 0 for worker in workers) == [True, True]
    ann.core.cancel(blocker)


def test_one_tenants_thousand_requests_do_not_stop_anothers_single_one() -> None:
    sim = Simulation()
    sim.worker(rows=1)
    greedy, modest = sim.client("greedy"), sim.client("modest")
    for i in range(50):
        greedy.submit(f"mass {i}")
    sim.run(0.2)
    request = modest.submit("single")
    sim.run(3)

    check_answer(modest, request, "single")
    assert sum(bool(ends) for ends in greedy.ends.values()) < 10
