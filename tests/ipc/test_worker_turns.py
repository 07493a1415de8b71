"""The worker's threads share one interpreter: the engine's must not keep it from the socket's."""

import sys
from typing import Any

import pytest

from ipc import messages as m
from ipc.bundle import messages_of
from ipc.codec import decode, encode
from ipc.engine_driver import EngineReady, Stepped
from ipc.fake_engine import FakeDelta, FakeEngine
from ipc.served_engine import LoadedEngine
from ipc.short_turns import NANOSECONDS, Attributes
from ipc.worker import Worker


class Sent:
    """A socket that keeps what is sent, as the runs in each message."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []

    def send(self, frames: list[bytes]) -> None:
        chunks: list[Any] = [decode(each, m.FROM_WORKER) for each in messages_of(frames)]
        self.runs.append([chunk.run for chunk in chunks])


@pytest.mark.parametrize(
    ("clients", "sent"),
    [
        ("a", [["0"]]),
        ("aaaa", [["0", "1", "2", "3"]]),
        ("aba", [["0", "1", "2"]]),
        ("abcd", [["0"], ["1", "2", "3"]]),
        ("aab", [["0"], ["1", "2"]]),
        ("x" + "a" * 17 + "b", [["0"], [*map(str, range(1, 17))], ["17", "18"]]),
    ],
)
def test_of_a_round_for_several_clients_the_first_chunk_leaves_alone(
    clients: str, sent: list[list[str]]
) -> None:
    assert told(clients, rounds=1) == sent


def test_rounds_that_wait_are_merged_and_none_leaves_ahead() -> None:
    assert told("abcd", rounds=3) == [["0", "1", "2", "3"]]


def told(clients: str, rounds: int) -> list[list[str]]:
    """Return which runs' chunks each message has, of rounds that gave each client's run a token."""
    worker = Worker("tcp://127.0.0.1:9", lambda: LoadedEngine(FakeEngine(), dict, (), 8, 16))
    core, socket = worker.core, Sent()
    core.engine_event(EngineReady(("fake",), 4), 0.0)
    core.broker_frames(encode(m.Welcome("e", 1.0, bundles=True)), 0.0)
    core.collect()
    for number, client in enumerate(clients):
        common: dict[str, Any] = {"run": str(number), "tenant": "", "client": client, "id": "r"}
        core.broker_frames(encode(m.Run(**common, kind="text", text="hi")), 0.0)
    gained = [FakeDelta(str(number), 0, "a", (1,)) for number in range(len(clients))]
    for _ in range(rounds):
        worker.engine.events.put(Stepped(gained))
    worker._due = float("inf")
    worker._round(socket)  # type: ignore[arg-type]
    return socket.runs


def test_gains_of_runs_that_are_gone_are_nobodys_and_the_others_are_told() -> None:
    worker = Worker("tcp://127.0.0.1:9", lambda: LoadedEngine(FakeEngine(), dict, (), 8, 16))
    assert not worker.core.has_several_readers(Stepped([FakeDelta("gone", 0, "a", (1,))]))


def test_an_engine_in_python_gives_way_within_a_millisecond_while_the_worker_serves() -> None:
    usual = sys.getswitchinterval()
    seen: list[float] = []

    def load() -> LoadedEngine:
        seen.append(sys.getswitchinterval())
        worker.request_drain()
        return LoadedEngine(FakeEngine(), dict, ("fake",), 8, 16)

    worker = Worker("tcp://127.0.0.1:9", load, drain_limit=0.0)
    assert worker.run() is None
    (serving,) = seen
    assert serving < 0.001 < usual == sys.getswitchinterval()


def test_the_sockets_thread_has_short_turns_and_the_engines_the_usual() -> None:
    usual = Attributes.read()
    if usual is None or usual.runtime == 0:
        pytest.skip("there are no turns of a length of one's own")
    engines: list[Attributes | None] = []
    sockets: list[Attributes | None] = []

    def load() -> LoadedEngine:
        engines.append(Attributes.read())
        return LoadedEngine(FakeEngine(), dict, ("fake",), 8, 16)

    def look() -> bool:
        sockets.append(Attributes.read())
        worker.request_drain()
        return False

    worker = Worker("tcp://127.0.0.1:9", load, drain_limit=0.0, orphaned=look)
    assert worker.run() is None
    assert engines == [usual]
    assert sockets[0] == usual._replace(runtime=NANOSECONDS)
    assert Attributes.read() == usual
