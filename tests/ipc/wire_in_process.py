"""A broker and workers on threads of this process, on real sockets."""

import threading
import time
from collections.abc import Callable
from typing import Any

from ipc.broker import Broker
from ipc.broker_records import BrokerConfig
from ipc.fake_engine import FakeEngine, FakeOptions
from ipc.served_engine import LoadedEngine
from ipc.worker import Worker


class InProcess:
    """Close it: it waits for its threads."""

    def __init__(self, **config: Any) -> None:
        config = {"heartbeat": 0.4, "drain_limit": 0.2, **config}
        local = ["tcp://127.0.0.1:*"]
        self.broker = Broker(local, local, config=BrokerConfig(**config))
        self.address = self.broker.frontend_addresses[0]
        self.backend = self.broker.backend_addresses[0]
        self.workers: list[Worker] = []
        self.engines: list[FakeEngine] = []
        self._threads: list[threading.Thread] = []
        self._run(self._serve)

    def _serve(self) -> None:
        try:
            self.broker.run()
        finally:
            self.broker.close()

    def worker(self, **options: Any) -> FakeEngine:
        engine = FakeEngine(FakeOptions(**options))
        rows = engine.options.rows
        loaded = LoadedEngine(engine, dict, (engine.options.name,), rows, 2 * rows)
        worker = Worker(self.backend, lambda: loaded, heartbeat=0.4, drain_limit=0.2)
        self.workers.append(worker)
        self.engines.append(engine)
        self._run(worker.run)
        return engine

    def _run(self, target: Callable[[], Any]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        for worker in self.workers:
            worker.request_drain()
        self.broker.request_drain()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
