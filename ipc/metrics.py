"""A broker's Prometheus metrics.

What the broker sees happen are counters and histograms; what its workers report about their
engines is exported as it is, one gauge a figure, labelled with the worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .broker_records import Job

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class StateCollector(Collector):
    """Gauges from the last snapshot. The broker's thread replaces it, scrapes read it."""

    def __init__(self) -> None:
        self.broker: Mapping[str, Any] = {}
        self.workers: Sequence[Mapping[str, Any]] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one family a figure."""
        broker = self.broker
        by_state = GaugeMetricFamily(
            "octavo_requests", "Requests in the broker now", labels=["state"]
        )
        for name, value in broker.items():
            if name in ("held", "queued", "running", "ended"):
                by_state.add_metric([name], float(value))
            elif isinstance(value, int | float):
                family = GaugeMetricFamily(f"octavo_{name}", f"The broker's figure {name!r}")
                family.add_metric([], float(value))
                yield family
        yield by_state
        yield from self._worker_families()

    def _worker_families(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for figures in self.workers:
            worker = str(figures.get("name", ""))
            for name, value in figures.items():
                if isinstance(value, list):
                    family = self._family(families, name, ["worker", "position"])
                    for position, element in enumerate(value):
                        family.add_metric([worker, str(position)], float(element))
                elif isinstance(value, int | float):
                    self._family(families, name, ["worker"]).add_metric([worker], float(value))
        yield from families.values()

    @staticmethod
    def _family(
        families: dict[str, GaugeMetricFamily], name: str, labels: list[str]
    ) -> GaugeMetricFamily:
        safe = "".join(letter if letter.isalnum() else "_" for letter in name)
        key = f"octavo_worker_{safe}"
        if key not in families:
            families[key] = GaugeMetricFamily(key, f"A worker's figure {name!r}", labels=labels)
        return families[key]


class BrokerMetrics:
    """Counts what a broker reports; see BrokerObserver."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.state = StateCollector()
        self.registry.register(self.state)
        own = self.registry
        self._admitted = Counter("octavo_admitted", "Requests admitted", registry=own)
        self._refused = Counter(
            "octavo_refused", "Requests and messages refused", ["code"], registry=own
        )
        self._ended = Counter("octavo_ended", "Requests ended", ["reason"], registry=own)
        self._tokens = Counter("octavo_tokens", "Tokens sent to clients", registry=own)
        self._dispatched = Counter(
            "octavo_dispatched", "Runs given to workers", ["prefix"], registry=own
        )
        self._events = Counter("octavo_events", "Faults and changes", ["event"], registry=own)
        self._queue_time = Histogram(
            "octavo_queue_seconds",
            "From admission to a worker",
            buckets=_SECONDS,
            registry=own,
        )
        self._first_token = Histogram(
            "octavo_first_token_seconds",
            "From admission to the first token",
            buckets=_SECONDS,
            registry=own,
        )
        self._per_token = Histogram(
            "octavo_token_seconds",
            "Time per token after the first, a request",
            buckets=_PER_TOKEN,
            registry=own,
        )

    def text(self) -> bytes:
        """Return what a scrape gets."""
        return generate_latest(self.registry)

    def admitted(self, job: Job) -> None:
        """Count an admitted request."""
        self._admitted.inc()

    def refused(self, reason: str, tenant: str, request_id: str | None) -> None:
        """Count a refusal."""
        self._refused.labels(reason).inc()

    def dispatched(self, job: Job, held_prefix: bool, waited: float) -> None:
        """Count a run."""
        self._dispatched.labels("held" if held_prefix else "new").inc()
        self._queue_time.observe(waited)

    def began(self, job: Job, now: float) -> None:
        """Count how long its first token took."""
        self._first_token.observe(now - job.arrived)

    def emitted(self, num_tokens: int) -> None:
        """Count tokens."""
        self._tokens.inc(num_tokens)

    def ended(self, job: Job, reason: str, now: float) -> None:
        """Count an end."""
        self._ended.labels(reason).inc()
        if job.first_token is not None and job.tokens > 1:
            self._per_token.observe((now - job.first_token) / (job.tokens - 1))

    def event(self, name: str, **details: object) -> None:
        """Count an event."""
        self._events.labels(name).inc()
