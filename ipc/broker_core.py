"""The broker's heart: which request is where, and what follows when something happens.

Pure: methods take an event and the time, and return the messages to send. Rules it keeps:
1. A job is in exactly one state: held (a worker may still bring its run back), queued (in the
   line), running (``job.run in worker.jobs``) or ended (its last message is in the outbox).
2. A job ends once: its outbox gets one ``done`` or ``error``, as its last message.
3. What is admitted is released exactly once, when the job is forgotten.
4. A run id is used once. What a worker says about a run that is not its own any more is
   answered with cancel and ack, and changes nothing.
"""

import uuid
from collections.abc import Iterable

from .admission import Admission
from .broker_line import BrokerLine
from .broker_records import (
    BrokerConfig,
    BrokerObserver,
    ClientSession,
    Job,
    Orphan,
    Send,
    Side,
    SilentObserver,
    WorkerRecord,
)
from .codec import encode
from .messages import Ack, Cancel, Credit, Done, Drain, Error, RunState, SampleEnd, Welcome
from .routing import PrefixRouter


class BrokerCore:
    """All state of a broker. ``ClientDesk`` and ``WorkerDesk`` turn messages into its events."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now: float,
        observer: BrokerObserver | None = None,
        epoch: str | None = None,
    ) -> None:
        self.config = config
        self.observer: BrokerObserver = observer or SilentObserver()
        self.epoch = epoch or uuid.uuid4().hex[:12]
        self.started = now
        self.sessions: dict[tuple[str, str], ClientSession] = {}
        self.session_of: dict[bytes, ClientSession] = {}
        self.workers: dict[str, WorkerRecord] = {}
        self.worker_of: dict[bytes, WorkerRecord] = {}
        self.orphans: dict[str, Orphan] = {}  # by run
        self.line: BrokerLine[Job] = BrokerLine()
        self.admission = Admission(config.limits)
        self.router = PrefixRouter()
        self.draining_until: float | None = None
        self.uncounted = 0  # tokens that passed by since the observer was told
        self._runs = 0

    # Connections

    def welcome(self) -> Welcome:
        """Return the answer to a hello."""
        return Welcome(self.epoch, self.config.heartbeat, self.models(), bundles=True)

    def takes_bundles(self, side: Side, peer: bytes) -> bool:
        """Whether a peer said, on this connection, that it takes bundles."""
        known = self.session_of.get(peer) if side == "front" else self.worker_of.get(peer)
        return known is not None and known.bundles

    # Where requests go

    def models(self) -> tuple[str, ...]:
        """Return the models that are served now."""
        return tuple(sorted({model for worker in self.workers.values() for model in worker.models}))

    def enqueue(self, job: Job, *, first: bool = False) -> None:
        """Put a job in the line."""
        job.state = "queued"
        key = (job.session.tenant, job.submit.model)
        self.line.add(key, job, priority=job.terms.priority, first=first)

    def dispatch(self, now: float) -> list[Send]:
        """Send waiting jobs to workers that want more, tenants in turn."""
        sends: list[Send] = []
        progress = bool(len(self.line)) and any(
            worker.load < worker.capacity for worker in self.workers.values()
        )
        while progress:
            progress = False
            for key in self.line.turns():
                job = self.line.peek(key)
                if job is not None and self._dispatch_one(job, now, sends):
                    self.line.pop(key)
                    progress = True
        return sends

    def _dispatch_one(self, job: Job, now: float, sends: list[Send]) -> bool:
        candidates = [
            worker.candidate()
            for worker in self.workers.values()
            if worker.peer is not None and worker.serves(job.submit.model)
        ]
        choice, held = self.router.choose(job.hashes, candidates)
        if choice is None:
            return False
        worker = self.workers[str(choice.name)]
        self.router.remember(job.hashes, worker.name)
        self._runs += 1
        job.run = f"{self.epoch}-{self._runs}"
        job.worker, job.state = worker, "running"
        job.attempts += 1
        worker.jobs[job.run] = job
        worker.load += 1
        waited, job.started = now - job.arrived, now
        job.note_credit(now)
        self.observer.dispatched(job, held, waited)
        sends.append(Send("back", worker.peer or b"", encode(job.run_message(now))))
        return True

    # What happens to a job

    def flush(self, job: Job) -> list[Send]:
        """Return what its client has not been sent yet, if the client is connected."""
        peer = job.session.peer
        if peer is None:
            return []
        return [Send("front", peer, frames) for frames in job.outbox.take()]

    def detach(self, job: Job, *, stop: bool) -> list[Send]:
        """Separate a job from its worker; with ``stop`` the worker is told to end the run."""
        worker, run = job.worker, job.run
        if worker is None:
            return []
        if worker.jobs.pop(run, None) is not None and job.state == "running":
            worker.load -= 1
        job.worker = None
        return self.dismiss(worker, run, job.submit.id) if stop else []

    def dismiss(self, worker: WorkerRecord, run: str, request_id: str) -> list[Send]:
        """Tell a worker that nobody wants a run any more."""
        if worker.peer is None:
            return []
        return [
            Send("back", worker.peer, encode(Cancel(id=request_id, run=run))),
            Send("back", worker.peer, encode(Ack(id=request_id, run=run))),
        ]

    def end_with_error(
        self, job: Job, code: str, message: str, *, retryable: bool, now: float
    ) -> list[Send]:
        """End a job that cannot be answered."""
        sends = self._leave(job)
        error = Error(
            code=code,
            message=message,
            retryable=retryable,
            id=job.submit.id,
            seq=job.outbox.end,
            progress=job.tokens,
        )
        return [*sends, *self._end(job, encode(error), code, now)]

    def end_without_answer(self, job: Job, reason: str, now: float) -> list[Send]:
        """End a job as "cancelled" or "deadline" here, when no worker can say so."""
        sends = self._leave(job)
        samples = tuple(SampleEnd(index, reason) for index in range(job.terms.samples))
        done = Done(id=job.submit.id, seq=job.outbox.end, seed=job.seed, samples=samples)
        return [*sends, *self._end(job, encode(done), reason, now)]

    def end_as_told(self, job: Job, frames: list[bytes], reason: str, now: float) -> list[Send]:
        """End a job with its worker's own last message; the worker keeps it until the ack."""
        if job.worker is not None and job.state == "running":
            job.worker.load -= 1
        return self._end(job, frames, reason, now)

    def _leave(self, job: Job) -> list[Send]:
        self.line.discard(job)
        return self.detach(job, stop=True)

    def _end(self, job: Job, frames: list[bytes], reason: str, now: float) -> list[Send]:
        job.state = "ended"
        job.stalled_since = None
        job.emitted.clear()
        job.outbox.push(frames)
        self.observer.ended(job, reason, now)
        return self.flush(job)

    def lose_run(self, job: Job, cause: str, now: float) -> list[Send]:
        """The worker of a running job is lost: run it elsewhere, or say how far it came."""
        sends = self.detach(job, stop=True)
        if job.cancelled:
            return [*sends, *self.end_without_answer(job, "cancelled", now)]
        if job.attempts >= self.config.max_attempts:
            message = f"{job.attempts} workers were lost while they ran it; the last one {cause}"
            return [
                *sends,
                *self.end_with_error(job, "worker_lost", message, retryable=False, now=now),
            ]
        nothing_sent = job.outbox.end == 0
        if nothing_sent or job.submit.resume:
            self.observer.event("rerun", request=job.submit.id, cause=cause, tokens=job.tokens)
            self.enqueue(job, first=True)
            return sends
        message = f"its worker {cause}, after {job.tokens} tokens; submit it with resume to go on"
        return [
            *sends,
            *self.end_with_error(job, "worker_lost", message, retryable=True, now=now),
        ]

    def forget(self, job: Job, now: float) -> list[Send]:
        """Drop a job: its end was acknowledged, or its client is gone."""
        sends: list[Send] = []
        if job.state == "ended":
            worker, run = job.worker, job.run
            self.detach(job, stop=False)
            if worker is not None and worker.peer is not None:
                sends = [Send("back", worker.peer, encode(Ack(id=job.submit.id, run=run)))]
        else:
            sends = self._leave(job)
            job.state = "ended"
            self.observer.ended(job, "client_gone", now)
        del job.session.jobs[job.submit.id]
        self.admission.release(job.session.tenant, job.amount, now)
        return sends

    def grant(self, job: Job, tokens: int, now: float) -> list[Send]:
        """Raise a job's credit; a smaller one changes nothing."""
        if tokens <= job.credit:
            return []
        job.credit = tokens
        job.note_credit(now)
        return self.forward_credit(job)

    def forward_credit(self, job: Job, *, resend: bool = False) -> list[Send]:
        """Tell a job's worker what has arrived and how far it may go."""
        worker = job.worker
        if worker is None or worker.peer is None:
            return []
        received = job.outbox.end if resend else job.outbox.first
        credit = Credit(
            id=job.submit.id, run=job.run, received=received, tokens=job.credit, resend=resend
        )
        return [Send("back", worker.peer, encode(credit))]

    def count_tokens(self, job: Job, position: int, num_tokens: int, now: float) -> None:
        """A chunk passed by, with ``num_tokens`` of a job's tokens from ``position`` on."""
        job.tokens = position + num_tokens
        if job.tokens >= job.credit or job.stalled_since is not None:
            job.note_credit(now)
        self.uncounted += num_tokens
        if job.first_token is None and num_tokens:
            job.first_token = now
            self.observer.began(job, now)

    def adopt(self, job: Job, worker: WorkerRecord, run: RunState, now: float) -> list[Send]:
        """A worker has a run of this job from an earlier broker: let it go on from there."""
        job.worker, job.run, job.state, job.seed = worker, run.run, "running", run.seed
        job.attempts += 1
        job.started = now
        worker.jobs[run.run] = job
        worker.load += 1
        sends = self.forward_credit(job, resend=True)
        if job.cancelled and worker.peer is not None:
            sends.append(Send("back", worker.peer, encode(Cancel(id=run.id, run=run.run))))
        return sends

    # Peers that leave

    def lose_worker(self, worker: WorkerRecord, cause: str, now: float) -> list[Send]:
        """Forget a worker; decide about its runs."""
        self.observer.event("worker_lost", worker=worker.name, cause=cause, runs=len(worker.jobs))
        self.workers.pop(worker.name, None)
        if worker.peer is not None:
            self.worker_of.pop(worker.peer, None)
            worker.peer = None
        self.router.forget(worker.name)
        for run in [run for run, orphan in self.orphans.items() if orphan.worker is worker]:
            del self.orphans[run]
        sends: list[Send] = []
        for job in list(worker.jobs.values()):
            if job.state == "running":
                sends += self.lose_run(job, cause, now)
            else:
                self.detach(job, stop=False)
        return sends + self.dispatch(now)

    def lose_client(self, session: ClientSession, now: float) -> list[Send]:
        """Forget a client and cancel everything it asked for."""
        self.observer.event("client_gone", client=session.name, requests=len(session.jobs))
        self.sessions.pop((session.tenant, session.name), None)
        if session.peer is not None:
            self.session_of.pop(session.peer, None)
        sends: list[Send] = []
        for job in list(session.jobs.values()):
            sends += self.forget(job, now)
        return sends + self.dispatch(now)

    # The end

    def drain(self, now: float) -> list[Send]:
        """Admit nothing more. A second call changes nothing."""
        if self.draining_until is not None:
            return []
        self.draining_until = now + self.config.drain_limit
        self.observer.event("draining", requests=self.admission.used["requests"])
        frames = encode(Drain(reason="the broker is shutting down"))
        return [Send("front", peer, frames) for peer in self.session_of]

    def unfinished(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs() if job.state != "ended"]

    def jobs(self) -> Iterable[Job]:
        """Return every job."""
        return [job for session in self.sessions.values() for job in session.jobs.values()]

    def release_held(self, job: Job, now: float) -> list[Send]:
        """No worker brought the run back: run it again if that loses nothing."""
        if job.outbox.end == 0 or job.submit.resume:
            self.enqueue(job)
            return []
        message = (
            "the broker does not know this request any more: it was restarted, or its client was "
            f"silent for too long; {job.outbox.end} messages had arrived"
        )
        return self.end_with_error(job, "unknown_request", message, retryable=True, now=now)
