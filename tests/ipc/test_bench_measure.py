import pytest
from bench_toys import Clock, ToyEngine

from engine.sampling_params import SamplingParams
from ipc.bench.arrivals import Arrivals
from ipc.bench.measure import Measured, measure
from ipc.bench.session import Message, Session

AT_ONCE = Arrivals()


def session(name: str, tokens: int = 2, **more: object) -> Session:
    opening = f"Tell {name}"
    return Session(name, opening, SamplingParams(max_tokens=tokens), **more)  # type: ignore[arg-type]


def chat(name: str, *follow_ups: str) -> Session:
    opening = ({"role": "user", "content": "Hello"},)
    return Session(name, opening, SamplingParams(max_tokens=2), follow_ups)


def drive(engine: ToyEngine, sessions: list[Session], arrivals: Arrivals = AT_ONCE) -> Measured:
    return measure(engine, sessions, arrivals, engine.clock, engine.clock.sleep)


def moments(run: Measured) -> list[tuple[float | None, ...]]:
    """Arrived, begun, first and last token of each request, from the clock's 100 on."""
    return [
        tuple(
            None if at is None else at - 100
            for at in (each.arrived, each.begun, each.first, each.last)
        )
        for each in run.requests
    ]


def test_who_comes_at_once_and_finds_no_row_waits_from_the_start() -> None:
    run = drive(ToyEngine(Clock(), rows=1), [session("a"), session("b")])

    assert moments(run) == [(0, 0, 1, 2), (0, 2, 3, 4)]
    assert [each.queued for each in run.requests] == [0, 2]
    assert [each.to_first_token for each in run.requests] == [1, 3]
    assert [each.per_token for each in run.requests] == [1, 1]
    assert (run.seconds, run.step_seconds) == (4, [1, 1, 1, 1])


def test_users_who_come_while_a_step_runs_are_waiting_from_then_on() -> None:
    arrivals = Arrivals(rate=2.0, seed=3)
    first, second = arrivals.offsets(2)
    assert second - first < 1  # the toy's step takes a second: nobody listens when b comes

    engine = ToyEngine(Clock(), rows=2)
    run = drive(engine, [session("a", 3), session("b", 1)], arrivals)

    assert engine.clock.slept == [pytest.approx(first)]
    assert run.requests[1].arrived == pytest.approx(100 + second)
    assert run.requests[1].queued == pytest.approx(1 - (second - first))
    assert run.requests[1].to_first_token == pytest.approx(2 - (second - first))


def test_an_idle_engine_sleeps_until_the_next_user_comes() -> None:
    arrivals = Arrivals(rate=0.01, seed=1)
    first, second = arrivals.offsets(2)

    engine = ToyEngine(Clock())
    drive(engine, [session("a", 1), session("b", 1)], arrivals)

    assert engine.clock.slept == [pytest.approx(first), pytest.approx(second - first - 1)]
    assert engine.steps == 2


def test_in_a_closed_loop_the_next_user_comes_when_one_is_done() -> None:
    sessions = [session("a", 1), session("b", 3), session("c", 1)]
    run = drive(ToyEngine(Clock(), rows=8), sessions, Arrivals(concurrency=2))

    assert moments(run) == [(0, 0, 1, 1), (0, 0, 1, 3), (1, 1, 2, 2)]


def test_each_turn_goes_on_from_the_models_own_answer_as_soon_as_it_is_there() -> None:
    engine = ToyEngine(Clock())
    run = drive(engine, [chat("x", "And then?", "Why?")])

    assert moments(run) == [(0, 0, 1, 2), (2, 2, 3, 4), (4, 4, 5, 6)]
    told: list[Message] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "lala"},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": "lala"},
        {"role": "user", "content": "Why?"},
    ]
    assert [engine.asked[f"x/{turn}"][0] for turn in range(3)] == [told[:1], told[:3], told]


def test_a_conversation_of_several_turns_takes_one_place_in_a_closed_loop() -> None:
    engine = ToyEngine(Clock())
    drive(engine, [chat("x", "And then?"), session("y", 1)], Arrivals(concurrency=1))

    assert list(engine.asked) == ["x/0", "x/1", "y/0"]


def test_a_conversation_ends_with_an_answer_that_failed() -> None:
    run = drive(ToyEngine(Clock(), failing="x/1"), [chat("x", "And then?", "Why?"), session("y")])

    assert [each.finish_reason for each in run.requests] == ["length", "length", "error"]
    assert run.requests[-1].error == "it was to fail"
    assert run.requests[-1].to_first_token is None


def test_a_session_arrives_once_the_run_has_put_out_so_many_tokens() -> None:
    run = drive(ToyEngine(Clock()), [session("a", 5), session("late", 1, after_tokens=3)])

    assert moments(run) == [(0, 0, 1, 5), (3, 3, 4, 4)]


def test_a_session_arrives_in_the_end_if_its_tokens_are_never_put_out() -> None:
    late = [session("late", 1, after_tokens=300), session("later", 1, after_tokens=400)]
    run = drive(ToyEngine(Clock()), [session("a", 2), *late])

    assert moments(run) == [(0, 0, 1, 2), (2, 2, 3, 3), (3, 3, 4, 4)]


def test_tokens_of_the_first_step_do_not_count_as_time_between_tokens() -> None:
    run = drive(ToyEngine(Clock(), tokens_a_step=4), [session("a", 10), session("b", 4)])

    assert run.requests[0].gaps == [1, 1]
    assert run.requests[0].per_token == pytest.approx(2 / 6)
    assert run.requests[1].per_token is None


def test_an_engine_that_stops_before_it_has_answered_is_an_error() -> None:
    class Forgetful(ToyEngine):
        @property
        def has_work(self) -> bool:
            return self.steps == 0

    with pytest.raises(RuntimeError, match="the engine stopped with 1 requests unanswered"):
        drive(Forgetful(Clock()), [session("a", 5)])


def test_only_a_conversation_has_follow_ups() -> None:
    with pytest.raises(ValueError, match="'a' has follow-ups, but opens with a plain text"):
        session("a", follow_ups=("Why?",))
