"""The worker's threads share one interpreter: the engine's must not keep it from the socket's."""

import sys

import pytest

from ipc.fake_engine import FakeEngine
from ipc.served_engine import LoadedEngine
from ipc.short_turns import NANOSECONDS, Attributes
from ipc.worker import Worker


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
