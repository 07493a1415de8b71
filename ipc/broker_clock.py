"""What the broker does because time has passed: silence, deadlines, stalls, ends of waiting."""

from .broker_core import BrokerCore
from .broker_records import Job, Send


class BrokerClock:
    """Looks at everything a core holds and does what is due."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._ticked = core.started

    def tick(self, now: float) -> list[Send]:
        """Do what is due: silent peers, deadlines, stalls, the end of waiting and draining."""
        core = self._core
        self._forgive_pause(now)
        if core.uncounted:
            core.observer.emitted(core.uncounted)
            core.uncounted = 0
        sends: list[Send] = []
        for worker in list(core.workers.values()):
            if now - worker.heard > core.config.worker_silence:
                sends += core.lose_worker(worker, "was not heard any more", now)
        for session in list(core.sessions.values()):
            if now - session.heard > core.config.client_silence:
                sends += core.lose_client(session, now)
        for run, orphan in list(core.orphans.items()):
            if now >= orphan.expires:
                del core.orphans[run]
                sends += core.dismiss(orphan.worker, run, orphan.run.id)
        for job in core.unfinished():
            sends += self._tick_job(job, now)
        return sends + core.dispatch(now)

    def _forgive_pause(self, now: float) -> None:
        """If this process itself stood still, nobody else was silent meanwhile."""
        core = self._core
        pause = now - self._ticked
        self._ticked = now
        if pause > core.config.heartbeat:
            for worker in core.workers.values():
                worker.heard = min(worker.heard + pause, now)
            for session in core.sessions.values():
                session.heard = min(session.heard + pause, now)

    def _tick_job(self, job: Job, now: float) -> list[Send]:
        core = self._core
        if core.draining_until is not None and now >= core.draining_until:
            message = f"the broker is shutting down; {job.tokens} tokens were sent"
            return core.end_with_error(job, "draining", message, retryable=True, now=now)
        # a worker says it best itself; it gets two heartbeats to do so
        patience = 2 * core.config.heartbeat if job.state == "running" else 0.0
        if job.deadline is not None and now >= job.deadline + patience:
            return core.end_without_answer(job, "deadline", now)
        if job.state == "held" and now >= core.started + core.config.return_time:
            return core.release_held(job, now)
        if job.state == "running" and job.stalled_since is not None:
            stalled = now - job.stalled_since
            if stalled > core.config.stall_limit:
                message = f"no credit for {stalled:.1f} s after {job.tokens} tokens"
                return core.end_with_error(job, "slow_reader", message, retryable=False, now=now)
        if job.state == "queued":
            return self._tick_queued(job, now)
        return []

    def _tick_queued(self, job: Job, now: float) -> list[Send]:
        core = self._core
        if any(worker.serves(job.submit.model) for worker in core.workers.values()):
            job.unserved_since = None
            return []
        if job.unserved_since is None:
            job.unserved_since = now
        waited = now - job.unserved_since
        if waited <= core.config.worker_wait:
            return []
        message = f"no worker that serves it has been connected for {waited:.0f} s"
        return core.end_with_error(job, "no_worker", message, retryable=True, now=now)
