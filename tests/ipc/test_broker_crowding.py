"""What the broker does when there is too much: limits, readers that do not read, who is first."""

from simulation import Simulation, check_answer, check_error

from ipc.admission import AdmissionLimits, Amount
from ipc.messages import Done


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
