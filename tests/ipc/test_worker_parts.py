"""The parts a worker is made of: the engine's driver, streams of chunks, the pure core."""

from typing import Any

import pytest

from ipc import messages as m
from ipc.codec import decode, encode
from ipc.engine_driver import (
    BeginRun,
    CancelRun,
    EngineDied,
    EngineDriver,
    EngineReady,
    GrantCredit,
    RunRefused,
    Stepped,
)
from ipc.fake_engine import FakeDelta, FakeEngine, FakeLogprob, FakeOptions, FakeUsage
from ipc.limits import MAX_HEADER_BYTES
from ipc.run_stream import RunStream
from ipc.served_engine import LoadedEngine
from ipc.token_ids import pack_ids, unpack_ids
from ipc.worker_core import WorkerCore


def run(name: str = "e-1", **fields: Any) -> m.Run:
    params = {"max_tokens": 5, "seed": 1, **fields.pop("params", {})}
    common = {"tenant": "", "client": "c", "id": "r", "kind": "text", "text": "hi", "window": 99}
    return m.Run(run=name, **{**common, **fields}, params=params)


class Recorder(FakeEngine):
    """Remembers how it was called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(FakeOptions(**options), sleep=lambda seconds: None)
        self.calls: list[tuple[Any, ...]] = []

    def submit(self, prompt: Any, params: Any, **more: Any) -> str:
        self.calls.append(("submit", prompt, params, more))
        return super().submit(prompt, params, **more)

    def pause(self, request_id: str) -> None:
        self.calls.append(("pause", request_id))
        super().pause(request_id)

    def resume(self, request_id: str) -> None:
        self.calls.append(("resume", request_id))
        super().resume(request_id)


def driver(engine: FakeEngine) -> EngineDriver:
    return EngineDriver(LoadedEngine(engine, dict, ("fake",), 8, 16))


def step(drive: EngineDriver) -> None:
    assert drive.step(0.0) is not None
    drive.account()


def test_credit_that_is_used_up_pauses_the_run_exactly_there() -> None:
    engine = Recorder(tokens=2)
    drive = driver(engine)
    drive.handle(BeginRun(run(window=4, params={"max_tokens": 20})))
    step(drive)
    assert ("pause", "e-1") not in engine.calls
    step(drive)
    assert engine.calls[-1] == ("pause", "e-1")
    assert not drive.has_work
    drive.handle(GrantCredit("e-1", 4))  # nothing new: it stays paused
    assert engine.calls[-1] == ("pause", "e-1")
    drive.handle(GrantCredit("e-1", 6))
    assert engine.calls[-1] == ("resume", "e-1")
    step(drive)
    assert engine.calls[-1] == ("pause", "e-1")


def test_a_run_that_goes_on_elsewhere_keeps_its_account() -> None:
    engine = Recorder()
    drive = driver(engine)
    emitted = pack_ids([7, 8, 9])
    drive.handle(BeginRun(run(window=3, emitted_ids=emitted)))
    (_, prompt, params, more), paused = engine.calls
    assert (prompt, params["seed"], more["emitted"]) == ("hi", 1, (7, 8, 9))
    assert paused == ("pause", "e-1")


def test_tenants_never_share_cached_blocks() -> None:
    engine = Recorder()
    drive = driver(engine)
    for number, tenant in enumerate(["", "a", "b", "a\x00b"]):
        drive.handle(BeginRun(run(f"e-{number}", tenant=tenant, params={"salt": "s"})))
    salts = [call[2]["salt"] for call in engine.calls]
    assert len(set(salts)) == 4
    assert salts[0] == "s"
    assert [call[3]["tenant"] for call in engine.calls] == ["", "a", "b", "a\x00b"]


def test_a_refusal_says_why_and_leaves_the_driver_working() -> None:
    drive = driver(Recorder())
    (refused,) = drive.handle(BeginRun(run(text="!refuse")))
    assert isinstance(refused, RunRefused)
    assert (refused.code, "asks to be refused" in refused.message) == ("bad_request", True)
    (refused,) = drive.handle(BeginRun(run(params={"stop_token_ids": b"\0\0\0"})))
    assert isinstance(refused, RunRefused)
    assert "stop_token_ids" in refused.message
    assert drive.num_runs == 0
    drive.handle(CancelRun("e-1"))
    drive.handle(GrantCredit("unknown", 5))
    assert drive.handle(BeginRun(run())) == []


def test_a_fault_of_the_engine_at_submission_is_internal() -> None:
    class Broken(Recorder):
        def submit(self, *args: Any, **more: Any) -> str:
            raise KeyError("oops")

    (refused,) = driver(Broken()).handle(BeginRun(run()))
    assert isinstance(refused, RunRefused)
    assert (refused.code, "KeyError" in refused.message) == ("internal", True)


def test_figures_are_flat_numbers_whatever_the_engine_has() -> None:
    from dataclasses import dataclass

    @dataclass
    class Inner:
        free_blocks: int

    class Rich(Recorder):
        def stats(self) -> Any:
            return {"inner": Inner(3), "by_position": (0.5, 0.25), "odd": object(), "none": None}

    figures = driver(Rich()).figures().figures
    assert figures["free_blocks"] == 3
    assert figures["by_position"] == [0.5, 0.25]
    assert not {"odd", "none", "inner"} & set(figures)


def delta(text: str, *ids: int, index: int = 0, **more: Any) -> FakeDelta:
    return FakeDelta("e-1", index, text, ids, **more)


def messages(frames: list[list[bytes]]) -> list[m.Message]:
    return [decode(each, m.FROM_WORKER) for each in frames]


def test_rounds_that_could_not_be_sent_become_one_chunk() -> None:
    stream = RunStream(run(seq=3, emitted_ids=pack_ids([1, 2])))
    stream.add(delta("a", 10))
    stream.add(delta("bc", 11, 12))
    (chunk,) = messages(stream.take())
    assert chunk == m.Chunk(
        *("r", 3, 2, (m.Piece(0, 3, "abc"),)), run="e-1", ids=pack_ids([10, 11, 12])
    )
    assert stream.take() == []


def test_samples_stay_apart_in_a_chunk_and_the_end_follows_the_last() -> None:
    stream = RunStream(run(params={"n": 2}))
    usage = FakeUsage(1, 2, 3, 4, 5)
    stream.add(delta("b", 20, index=1))
    stream.add(delta("a", 10, finish_reason="stop", usage=usage))
    stream.add(delta("c", 21, index=1))
    (chunk,) = messages(stream.take())
    assert isinstance(chunk, m.Chunk)
    assert [(p.index, p.count, p.text, p.reason) for p in chunk.pieces] == [
        (0, 1, "a", "stop"),
        (1, 2, "bc", None),
    ]
    assert unpack_ids(chunk.ids) == (10, 20, 21)
    stream.add(delta("", index=1, finish_reason="error", usage=usage, error="why"))
    _, done = messages(stream.take())
    assert isinstance(done, m.Done)
    assert (done.seq, done.seed) == (2, 1)
    numbers = {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3}
    numbers |= {"drafted_tokens": 4, "accepted_tokens": 5}
    ends = (m.SampleEnd(0, "stop", numbers), m.SampleEnd(1, "error", numbers, "why"))
    assert done.samples == ends


def test_what_gathers_behind_a_blocked_way_is_cut_into_chunks_that_fit() -> None:
    stream = RunStream(run(params={"logprobs": 100}))
    top = tuple((number, -1.0) for number in range(100))
    for number in range(1000):
        stream.add(delta("x" * 50, number, logprobs=[FakeLogprob(number, -0.5, top)]))
    for number in range(30):
        stream.add(delta("y" * 10_000, number, logprobs=[FakeLogprob(number, -0.5)]))
    frames = stream.take()
    assert 2 < len(frames) < 40
    assert all(len(each[0]) < MAX_HEADER_BYTES for each in frames)
    ids = [i for each in messages(frames) for i in unpack_ids(each.ids)]  # type: ignore[union-attr]
    assert ids == [*range(1000), *range(30)]


def test_a_thousand_samples_long_errors_fit_one_message() -> None:
    stream = RunStream(run(params={"n": 1000}))
    for index in range(1000):
        stream.add(delta("", index=index, finish_reason="error", error="é" * 5000))
    *_, done = messages(stream.take())
    assert isinstance(done, m.Done)
    assert len(done.samples) == 1000


class Wire:
    """A worker's core with its broker played by the test."""

    def __init__(self, **options: Any) -> None:
        self.core = WorkerCore(now=0.0, name="w", **options)
        self.core.engine_event(EngineReady(("fake",), 4), 0.0)

    def say(self, message: m.Message, now: float = 0.0) -> None:
        self.core.broker_frames(encode(message), now)

    def said(self) -> list[m.Message]:
        return messages(self.core.collect())

    def welcome(self) -> "Wire":
        self.say(m.Welcome("e", 1.0))
        self.said()
        return self


def test_before_the_welcome_only_hello_is_said() -> None:
    wire = Wire()
    wire.say(run())
    wire.core.engine_event(Stepped((delta("a", 1),)), 0.0)
    wire.core.tick(0.1)
    hello = m.Hello(role="worker", name="w", models=("fake",), capacity=4, bundles=True)
    assert wire.said() == [hello]
    wire.say(m.Welcome("e", 1.0))
    (chunk,) = wire.said()
    assert isinstance(chunk, m.Chunk)


def test_a_broker_that_forgot_the_worker_is_told_of_its_runs() -> None:
    wire = Wire().welcome()
    wire.say(run(seq=2))
    wire.core.engine_event(Stepped((delta("a", 1),)), 0.0)
    wire.said()
    wire.say(m.Error("hello_required", "who?", True), 5.0)
    wire.say(m.Error("hello_required", "who?", True), 5.0)
    (hello,) = wire.said()  # once, not once a message
    state = m.RunState("e-1", "", "c", "r", first=2, seq=3, tokens=1, seed=1)
    assert hello == m.Hello("worker", "w", ("fake",), 4, (state,), bundles=True)


def test_what_many_runs_have_to_say_can_be_had_a_few_messages_at_a_time() -> None:
    wire = Wire().welcome()
    for number in range(5):
        wire.say(run(f"e-{number}"))
        wire.core.engine_event(Stepped((FakeDelta(f"e-{number}", 0, "a", (1,)),)), 0.0)
    first, rest = messages(wire.core.collect(2)), wire.said()

    assert [each.run for each in first] == ["e-0", "e-1"]
    assert [each.run for each in rest] == ["e-2", "e-3", "e-4"]
    assert wire.said() == []


def test_what_the_client_has_not_acknowledged_is_sent_again() -> None:
    wire = Wire().welcome()
    wire.say(run())
    for number in range(3):
        wire.core.engine_event(Stepped((delta("a", number),)), 0.0)
        wire.said()
    wire.say(m.Credit("r", 1, 99, run="e-1"))
    wire.say(m.Credit("r", 2, 99, resend=True, run="e-1"))
    assert [each.seq for each in wire.said()] == [2]  # type: ignore[union-attr]
    wire.say(m.Credit("r", 0, 99, resend=True, run="e-1"))
    assert [each.seq for each in wire.said()] == [1, 2]  # type: ignore[union-attr]


def test_commands_for_the_engine_are_bounded_however_many_credits_come() -> None:
    wire = Wire().welcome()
    wire.say(run())
    for number in range(1000):
        wire.say(m.Credit("r", 0, number, run="e-1"))
    wire.say(m.Cancel("r", "e-1"))
    wire.say(m.Cancel("r", "e-1"))
    assert wire.core.take_commands(100) == [
        BeginRun(run()),
        GrantCredit("e-1", 999),
        CancelRun("e-1"),
    ]


def test_a_run_that_is_sent_twice_is_begun_once() -> None:
    wire = Wire().welcome()
    wire.say(run())
    assert wire.core.take_commands(9) == [BeginRun(run())]
    wire.say(run())
    assert wire.core.take_commands(9) == []


def test_an_ack_of_what_still_runs_ends_it() -> None:
    wire = Wire().welcome()
    wire.say(run())
    wire.core.take_commands(9)
    wire.say(m.Ack("r", "e-1"))
    assert wire.core.take_commands(9) == [CancelRun("e-1")]
    wire.core.engine_event(Stepped((delta("late", 1),)), 0.0)
    assert wire.said() == []


def test_a_dead_engine_is_told_after_what_it_had_said() -> None:
    wire = Wire().welcome()
    wire.say(run())
    wire.core.engine_event(Stepped((delta("a", 1),)), 0.0)
    wire.core.engine_event(EngineDied("RuntimeError: bad"), 0.0)
    chunk, drain = wire.said()
    assert isinstance(chunk, m.Chunk)
    assert drain == m.Drain("its engine died: RuntimeError: bad", leaving=True)
    assert (wire.core.left, wire.core.failure) == (True, "its engine died: RuntimeError: bad")


def test_a_silent_broker_makes_it_reopen_its_socket_and_greet() -> None:
    wire = Wire().welcome()
    for tenth in range(1, 30):
        assert not wire.core.tick(tenth / 10)
    assert wire.core.tick(3.1)
    assert [type(each) for each in wire.said()] == [m.Hello]
    assert not wire.core.welcomed


def test_a_worker_that_stood_still_does_not_blame_the_broker() -> None:
    wire = Wire().welcome()
    assert not wire.core.tick(100.0)
    assert wire.core.welcomed


@pytest.mark.parametrize("finished", [True, False])
def test_draining_ends_with_the_runs_or_at_the_limit(finished: bool) -> None:
    wire = Wire(drain_limit=2.0).welcome()
    wire.say(run())
    wire.core.drain(0.0)
    wire.core.drain(0.5)
    assert wire.said() == [m.Drain("the worker is shutting down")]
    wire.say(run("e-2"))
    (refused,) = wire.said()
    assert isinstance(refused, m.Error)
    assert (refused.code, refused.run) == ("engine_failed", "e-2")
    if finished:
        wire.core.engine_event(Stepped((delta("", finish_reason="eos"),)), 1.0)
    wire.say(m.Pong(), 1.4)
    wire.core.tick(1.5)
    assert wire.core.left == finished
    wire.say(m.Pong(), 2.4)
    wire.core.tick(2.5)
    assert wire.core.left
    assert isinstance(wire.said()[-1], m.Drain)
    assert wire.core.failure is None
