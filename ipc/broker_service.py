"""A broker with all that an operator wants: metrics, health page, logs, signals."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from .broker import Broker
from .broker_core import BrokerCore
from .broker_records import BrokerConfig
from .keys import BrokerKeys
from .metrics import BrokerMetrics
from .service_log import LoggingObserver, log
from .stats_report import broker_stats, worker_stats
from .status_page import StatusPage

_PUBLISH_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What a broker is started with."""

    frontend: Sequence[str]
    backend: Sequence[str]
    config: BrokerConfig = field(default_factory=BrokerConfig)
    keys: BrokerKeys | None = None
    http: tuple[str, int] | None = None


class BrokerService:
    """Binds everything at once; ``run`` serves until it has drained."""

    def __init__(self, options: BrokerOptions) -> None:
        self._metrics = BrokerMetrics()
        self._heartbeat = options.config.heartbeat
        self._published = 0.0
        self.broker = Broker(
            options.frontend,
            options.backend,
            config=options.config,
            keys=options.keys,
            observer=LoggingObserver([self._metrics]),
            publish=self._publish,
        )
        self.page: StatusPage | None = None
        if options.http is not None:
            host, port = options.http
            self.page = StatusPage(host, port, self._health, self._metrics.text)

    def announce(self) -> None:
        """Say on stdout, as one line of JSON, where it can be reached."""
        where = {
            "event": "listening",
            "clients": self.broker.frontend_addresses,
            "workers": self.broker.backend_addresses,
            "http": None if self.page is None else self.page.port,
        }
        print(json.dumps(where), flush=True)

    def run(self) -> None:
        """Serve; SIGTERM and SIGINT drain."""
        on_stop_signals(self.broker.request_drain)
        try:
            self.broker.run()
        finally:
            self.broker.close()
            if self.page is not None:
                self.page.close()
        log("stopped")

    def _publish(self, core: BrokerCore, now: float) -> None:
        if now - self._published >= _PUBLISH_EVERY:
            self._published = now
            self._metrics.state.broker = broker_stats(core, now)
            self._metrics.state.workers = worker_stats(core)

    def _health(self) -> tuple[bool, dict[str, object]]:
        """Healthy: the loop goes round, and a worker is there that takes requests."""
        late = time.monotonic() - self.broker.beat
        workers = [
            worker
            for worker in list(self.broker.core.workers.values())
            if worker.peer is not None and not worker.draining
        ]
        draining = self.broker.core.draining_until is not None
        healthy = late < 3 * self._heartbeat and bool(workers) and not draining
        return healthy, {"workers": len(workers), "draining": draining}


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, however often they come."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
