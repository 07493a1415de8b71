"""Structured logs: one JSON object a line, with request ids."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from .broker_records import BrokerObserver, Job

logger = logging.getLogger("octavo")


class JsonFormatter(logging.Formatter):
    """Writes a record as JSON; what is in ``extra={"fields": {...}}`` becomes members."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def log_to_stderr(level: str = "info") -> None:
    """Send the logs of this process to stderr, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def log(event: str, **fields: object) -> None:
    """Log an event at level info."""
    logger.info(event, extra={"fields": fields})


class LoggingObserver:
    """Writes what a broker reports to the log, and passes it on; see BrokerObserver."""

    def __init__(self, others: Sequence[BrokerObserver] = ()) -> None:
        self._others = others

    def admitted(self, job: Job) -> None:
        """Log at level debug."""
        for other in self._others:
            other.admitted(job)
        logger.debug("admitted", extra={"fields": _identity(job)})

    def refused(self, reason: str, tenant: str, request_id: str | None) -> None:
        """Log at level debug: whoever floods the broker must not flood the log."""
        for other in self._others:
            other.refused(reason, tenant, request_id)
        fields = {"request": request_id, "tenant": tenant, "code": reason}
        logger.debug("refused", extra={"fields": fields})

    def dispatched(self, job: Job, held_prefix: bool, waited: float) -> None:
        """Log at level debug."""
        for other in self._others:
            other.dispatched(job, held_prefix, waited)
        worker = job.worker.name if job.worker is not None else None
        fields = {**_identity(job), "run": job.run, "worker": worker, "waited": round(waited, 6)}
        logger.debug("dispatched", extra={"fields": fields})

    def began(self, job: Job, now: float) -> None:
        """Pass it on."""
        for other in self._others:
            other.began(job, now)

    def emitted(self, num_tokens: int) -> None:
        """Pass it on."""
        for other in self._others:
            other.emitted(num_tokens)

    def ended(self, job: Job, reason: str, now: float) -> None:
        """Log one line a request."""
        for other in self._others:
            other.ended(job, reason, now)
        fields = {
            **_identity(job),
            "reason": reason,
            "tokens": job.tokens,
            "attempts": job.attempts,
            "seconds": round(now - job.arrived, 6),
        }
        logger.info("ended", extra={"fields": fields})

    def event(self, name: str, **details: object) -> None:
        """Log it."""
        for other in self._others:
            other.event(name, **details)
        log(name, **details)


def _identity(job: Job) -> dict[str, object]:
    tenant, client, request = job.key
    return {"request": request, "client": client, "tenant": tenant}
