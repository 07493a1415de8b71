"""The worker's threads share one interpreter: the engine's must not keep it from the socket's."""

import sys

from ipc.fake_engine import FakeEngine
from ipc.served_engine import LoadedEngine
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
