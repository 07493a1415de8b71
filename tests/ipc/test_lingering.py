"""Tokens that nobody reads as they come wait for later ones; firsts, ends and others do not."""

from collections.abc import Sequence
from typing import Any

import pytest

from ipc import messages as m
from ipc.codec import CodecError, decode, encode
from ipc.engine_driver import BeginRun, CancelRun, EngineDriver, GrantCredit
from ipc.fake_engine import FakeDelta, FakeEngine, FakeOptions, fake_tokens
from ipc.lingering import Lingering
from ipc.served_engine import LoadedEngine
from ipc.worker_core import WorkerCore


def gain(run: str, token: int, reason: str | None = None) -> FakeDelta:
    return FakeDelta(run, 0, "", (token,), finish_reason=reason)


def told(deltas: Sequence[Any]) -> list[tuple[str, int]]:
    return [(delta.request_id, delta.token_ids[0]) for delta in deltas]


def test_a_runs_first_gain_leaves_at_once_and_later_ones_when_the_eldest_has_waited() -> None:
    lingering = Lingering()
    lingering.begin("a", 0.25)
    assert told(lingering.sift([gain("a", 1)], 10.0)) == [("a", 1)]
    assert told(lingering.sift([gain("a", 2)], 10.1)) == []
    assert told(lingering.sift([gain("a", 3)], 10.34)) == []
    assert told(lingering.sift([gain("a", 4)], 10.36)) == [("a", 2), ("a", 3), ("a", 4)]
    assert told(lingering.sift([gain("a", 5)], 10.37)) == []
    assert told(lingering.sift([], 10.63)) == [("a", 5)]


def test_an_end_takes_along_what_waits_of_its_run() -> None:
    lingering = Lingering()
    for run in "ab":
        lingering.begin(run, 0.25)
    lingering.sift([gain("a", 1), gain("b", 1)], 0.0)
    lingering.sift([gain("a", 2), gain("b", 2)], 0.1)
    gained = [gain("a", 3, "eos"), gain("b", 3)]
    assert told(lingering.sift(gained, 0.1)) == [("a", 2), ("a", 3)]
    lingering.end("a")
    assert told(lingering.sift([gain("b", 4)], 0.34)) == []
    assert told(lingering.sift([gain("b", 5)], 0.36)) == [("b", 2), ("b", 3), ("b", 4), ("b", 5)]


def test_who_reads_as_they_come_waits_for_nobody() -> None:
    lingering = Lingering()
    lingering.begin("a", 0.25)
    lingering.begin("now", 0.0)
    lingering.sift([gain("a", 1), gain("now", 1)], 0.0)
    assert told(lingering.sift([gain("a", 2), gain("now", 2)], 0.1)) == [("now", 2)]
    assert told(lingering.sift([gain("now", 3, "eos")], 0.1)) == [("now", 3)]
    lingering.end("a")
    assert told(lingering.sift([gain("now", 4)], 0.4)) == [("a", 2), ("now", 4)]


def test_no_more_than_a_thousand_gains_wait() -> None:
    lingering = Lingering()
    lingering.begin("a", 1e9)
    left = [len(lingering.sift([gain("a", 1)], 0.0)) for _ in range(1100)]
    assert [(number, count) for number, count in enumerate(left) if count] == [(0, 1), (1024, 1024)]


class Wire:
    """A worker's core and driver, with a clock that a test moves."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        engine = FakeEngine(
            FakeOptions(**options), clock=lambda: self.now, sleep=lambda seconds: None
        )
        self.driver = EngineDriver(LoadedEngine(engine, dict, ("fake",), 8, 16))

    def begin(self, **fields: Any) -> None:
        common = {"tenant": "", "client": "c", "id": "r", "kind": "text", "text": "hi"}
        params = {"seed": 1, **fields.pop("params", {})}
        self.driver.handle(BeginRun(m.Run("e-1", **common, params=params, **fields)))

    def round(self, seconds: float = 0.0) -> list[int]:
        """Return the tokens told of in one round."""
        self.now += seconds
        events = (self.driver.step(self.now), self.driver.account())
        deltas = [delta for event in events if event is not None for delta in event]
        return [token for delta in deltas for token in delta.token_ids]


def test_a_run_that_pauses_for_want_of_credit_keeps_nothing_back() -> None:
    wire = Wire()
    wire.begin(window=3, linger=9.0, params={"max_tokens": 6})
    tokens = list(fake_tokens(b"hi", 1, 0, 0, 6))
    assert [wire.round(), wire.round(), wire.round()] == [tokens[:1], [], tokens[1:3]]
    assert not wire.driver.has_work
    wire.driver.handle(GrantCredit("e-1", 99))
    assert [wire.round(), wire.round(), wire.round()] == [[], [], tokens[3:]]


def test_a_cancelled_run_tells_what_waited() -> None:
    wire = Wire()
    wire.begin(window=99, linger=9.0, params={"max_tokens": 60})
    tokens = wire.round() + wire.round() + wire.round()
    wire.driver.handle(CancelRun("e-1"))
    tokens += wire.round()
    assert tokens == list(fake_tokens(b"hi", 1, 0, 0, 60))[: len(tokens)]
    assert len(tokens) >= 3


def test_several_rounds_of_a_run_arrive_as_one_chunk() -> None:
    wire = Wire()
    core = WorkerCore(now=0.0)
    core.welcomed = True
    run = m.Run("e-1", "", "c", "r", "text", "hi", params={"max_tokens": 9, "seed": 1}, linger=0.25)
    core._begin(run)
    for command in core.take_commands(9):
        wire.driver.handle(command)
    chunks = []
    for _ in range(9):
        wire.now += 0.1
        for event in (wire.driver.step(wire.now), wire.driver.account()):
            if event is not None:
                core.engine_event(event, wire.now)
        arrived = [decode(frames, m.FROM_WORKER) for frames in core.collect()]
        chunks.append(sum(piece.count for each in arrived for piece in getattr(each, "pieces", ())))
    assert chunks == [1, 0, 0, 0, 4, 0, 0, 0, 4]


@pytest.mark.parametrize("linger", [-1.0, float("inf"), "long"])
def test_a_linger_is_a_number_of_seconds(linger: Any) -> None:
    frames = encode(m.Submit("r", "text", "hi", linger=linger))
    with pytest.raises(CodecError, match="linger"):
        decode(frames, m.FROM_CLIENT)
