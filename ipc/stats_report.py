"""The figures that the broker answers ``stats`` with."""

from collections.abc import Mapping
from typing import Any

from .broker_core import BrokerCore


def broker_stats(core: BrokerCore, now: float) -> Mapping[str, Any]:
    """Return the broker's own figures."""
    jobs = list(core.jobs())
    states = dict.fromkeys(("held", "queued", "running", "ended"), 0)
    for job in jobs:
        states[job.state] += 1
    return {
        "uptime": now - core.started,
        "clients": len(core.sessions),
        "workers": len(core.workers),
        "draining": core.draining_until is not None,
        "requests_admitted": core.admission.used["requests"],
        "tokens_admitted": core.admission.used["tokens"],
        "bytes_admitted": core.admission.used["bytes"],
        "orphans": len(core.orphans),
        "prefixes": len(core.router),
        "stalled": sum(job.stalled_since is not None for job in jobs),
        **states,
    }


def worker_stats(core: BrokerCore) -> tuple[Mapping[str, Any], ...]:
    """Return each worker's figures: what the broker knows, then what it reports itself."""
    return tuple(
        {
            **worker.stats,
            "name": worker.name,
            "models": ", ".join(worker.models),
            "load": worker.load,
            "capacity": worker.capacity,
            "draining": worker.draining,
            "connected": worker.peer is not None,
        }
        for worker in core.workers.values()
    )
