"""Whole lives of requests through real cores over a simulated wire."""

from simulation import Simulation, asked, check_answer, check_error

from ipc.codec import encode
from ipc.fake_engine import fake_tokens
from ipc.messages import Done, Submit


def test_a_request_is_answered_and_forgotten_everywhere() -> None:
    sim, worker, client, request = asked("hello", seconds=2)

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
    sim, worker, client, request = asked("twice", seconds=0.3)
    submit = Submit(id=request, kind="text", text="twice", params={"max_tokens": 10})
    client.link.up.append(encode(submit))
    sim.run(2)

    check_answer(client, request, "twice")
    assert worker.engine.num_tokens == 10


def test_an_id_that_was_acknowledged_is_spent() -> None:
    sim, worker, client, request = asked("once", seconds=2)
    del client.ends[request]
    client.submit("once", request_id=request)
    sim.run(1)

    check_error(client, request, "already_finished", retryable=False)
    assert worker.engine.num_tokens == 10


def test_a_refusal_of_the_engine_reaches_the_client_and_is_not_retried() -> None:
    _, worker, client, request = asked("!refuse", seconds=1)

    end = check_error(client, request, "bad_request", retryable=False)
    assert "asks to be refused" in end.message
    assert worker.core.runs == {}


def test_a_failed_sample_is_an_answer_with_its_error() -> None:
    _, _, client, request = asked("!fail", seconds=1)

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
