import json

import pytest
from bench_toys import Clock, ToyEngine

from engine.sampling_params import SamplingParams
from ipc.bench.arrivals import Arrivals
from ipc.bench.bench import Bench
from ipc.bench.machine import machine, versions
from ipc.bench.measure import measure
from ipc.bench.record import make_record
from ipc.bench.session import Session
from ipc.bench.spread import spread
from ipc.bench.timeline import MOST, Timeline
from ipc.bench.workloads import WORKLOADS


def all_ones(count: int) -> dict[str, float]:
    return {"count": count, "median": 1.0, "p99": 1.0, "max": 1.0}


def test_a_record_counts_its_own_run_alone() -> None:
    engine = ToyEngine(Clock(), rows=3)
    earlier = [Session(name, "Hi", SamplingParams(max_tokens=3)) for name in "xyz"]
    measure(engine, earlier, Arrivals(), engine.clock, engine.clock.sleep)
    engine.rows = 1

    two = [Session(name, "Hi", SamplingParams(max_tokens=2), group=name) for name in "bc"]
    run = measure(engine, two, Arrivals(), engine.clock, engine.clock.sleep)
    record = make_record("toy", Arrivals(), run)

    waits = {"count": 2, "median": 2.0, "p99": 3.0, "max": 3.0}
    assert record == {
        "benchmark": "workload",
        "workload": "toy",
        "arrivals": {"process": "all at once"},
        "sessions": 2,
        "requests": 2,
        "finish_reasons": {"length": 2},
        "first_error": None,
        "seconds": 4.0,
        "prompt_tokens": 20,
        "cached_tokens": 8,
        "computed_prompt_tokens": 12,
        "hit_rate": 0.5,
        "output_tokens": 4,
        "output_tokens_per_second": 1.0,
        "prompt_tokens_per_second": 5.0,
        "requests_per_second": 0.5,
        "sessions_per_second": 0.5,
        "time_to_first_token_s": waits,
        "time_per_token_s": all_ones(2),
        "queue_s": {"count": 2, "median": 1.0, "p99": 2.0, "max": 2.0},
        "latency_s": {"count": 2, "median": 3.0, "p99": 4.0, "max": 4.0},
        "gap_s": all_ones(2),
        "groups": record["groups"],
        "rounds": 4,
        "mean_batch_width": 1.0,
        "mean_decode_width": 1.0,
        "preemptions": 4,
        "failed_rounds": 0,
        "drafts": {
            "drafted": 24,
            "accepted": 16,
            "drafted_by_position": [16, 8],
            "accepted_by_position": [12, 4],
        },
        "step_s": all_ones(4),
        "step_split_s": {
            "plan": 1.0,
            "build": 0.0,
            "draft": 0.0,
            "device": 2.0,
            "sample": 0.0,
            "text": 0.0,
            "commit": 0.0,
            "other": 1.0,
        },
        "timeline": {
            "seconds": [1.0, 2.0, 3.0, 4.0],
            "rows": [1.0, 1.0, 1.0, 1.0],
            "waiting": [0, 0, 0, 0],
            "held_blocks": [2, 0, 2, 0],
            "cached_blocks": [1, 1, 1, 1],
            "total_blocks": 10,
        },
        "peak_memory_bytes": 4096,
    }
    assert list(record["groups"]) == ["b", "c"]
    assert record["groups"]["c"]["time_to_first_token_s"]["median"] == 3.0
    assert json.loads(json.dumps(record)) == record


def test_the_99th_percentile_is_the_nearest_rank() -> None:
    assert spread([None, None]) is None
    assert spread([3.0, None, 1.0]) == {"count": 2, "median": 2.0, "p99": 3.0, "max": 3.0}
    hundred = spread(float(number) for number in range(1, 101))
    assert hundred == {"count": 100, "median": 50.5, "p99": 99.0, "max": 100.0}


def test_a_long_run_keeps_every_nth_step_of_its_rows_and_blocks() -> None:
    engine = ToyEngine(Clock(), rows=3)
    timeline = Timeline(engine.stats())
    for step in range(10 * MOST):
        engine.submit("Hi", SamplingParams(max_tokens=1), request_id=str(step))
        engine.step()
        if timeline.wants_sample:
            timeline.add(float(step), engine.stats())

    kept = timeline.described()["seconds"]
    assert isinstance(kept, list)
    assert MOST / 2 <= len(kept) < MOST
    assert kept == [16.0 * number for number in range(len(kept))]
    assert set(timeline.described()["rows"]) == {1.0}  # type: ignore[arg-type]


def test_rows_over_time_are_means_since_the_sample_before() -> None:
    engine = ToyEngine(Clock(), rows=2)
    sessions = [Session(str(length), "Hi", SamplingParams(max_tokens=length)) for length in (2, 3)]
    run = measure(engine, sessions, Arrivals(), engine.clock, engine.clock.sleep)

    assert run.timeline.described()["rows"] == [2.0, 2.0, 1.0]


def test_every_run_of_a_bench_has_a_cache_of_its_own_and_states_what_it_ran_on() -> None:
    engine = ToyEngine(Clock(), rows=2)
    bench = Bench(
        engine,
        options={"max_rows": 2},
        command=["octavo", "bench"],
        clock=engine.clock,
        sleep=engine.clock.sleep,
    )
    bench.warm_up()
    warm = list(engine.asked)
    records = [
        bench.run(WORKLOADS["json"], Arrivals(concurrency=1), num_sessions=2, num_tokens=3)
        for _ in range(2)
    ]

    assert [record["output_tokens"] for record in records] == [6, 6]
    assert warm == ["warm-up/0", "warm-up/1"]
    salts = {params.salt for _, params in engine.asked.values()}
    assert salts == {"warm-up", "run-2"}  # the second run asked by the same names as the first
    assert records[0]["model"] == "toy"
    assert records[0]["engine"] == {
        "model": "toy",
        "blas": "abacus (1 thread)",
        "layers": {"attention": 1, "recurrent": 2},
        "max_rows": 2,
    }
    assert records[0]["options"] == {"max_rows": 2}
    assert records[0]["command"] == "octavo bench"
    assert set(records[0]["load_average"]) == {"before", "after"}
    assert "/somebody" not in json.dumps(records)


def test_the_machine_and_the_versions_are_stated() -> None:
    assert {"python", "octavo", "mlx", "mlx-lm"} <= set(versions())
    facts = machine()
    assert isinstance(facts["cores"], int)
    assert facts["cores"] >= 1


@pytest.mark.parametrize(
    ("rate", "concurrency", "told"),
    [
        (1.0, 1, "at a rate or so many at a time, not both"),
        (0.0, None, "a rate must be above 0 users a second, not 0.0"),
        (None, 0, "concurrency must be at least 1, not 0"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(
    rate: float | None, concurrency: int | None, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Arrivals(rate=rate, concurrency=concurrency)


def test_random_arrivals_follow_their_seed_and_rate() -> None:
    offsets = Arrivals(rate=4.0, seed=1).offsets(2000)

    assert offsets == sorted(offsets) == Arrivals(rate=4.0, seed=1).offsets(2000)
    assert offsets != Arrivals(rate=4.0, seed=2).offsets(2000)
    assert 460 < offsets[-1] < 540
    assert Arrivals().offsets(3) == [0.0, 0.0, 0.0]
