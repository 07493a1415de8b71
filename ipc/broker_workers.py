"""The broker's desk for workers: their messages become events of the core."""

from collections.abc import Sequence

from .broker_core import BrokerCore
from .broker_records import Job, Orphan, Send, WorkerRecord
from .bundle import messages_of
from .chunk_codec import glance
from .codec import CodecError, decode, encode
from .limits import ID_BYTES, MAX_ARRAY
from .lone_chunk import read_lone
from .messages import (
    FROM_WORKER,
    Cancel,
    Chunk,
    Done,
    Drain,
    Error,
    Hello,
    Message,
    Ping,
    Pong,
    RunState,
    Stats,
)


class WorkerDesk:
    """Takes frames from the backend."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def receive(self, peer: bytes, frames: list[bytes], now: float) -> Sequence[Send]:
        """Handle one message. Its frames are kept, as they are, if they go on to a client."""
        if len(frames) != 1:  # the usual case: a bundle is one frame
            return self._receive(peer, frames, now)
        try:
            messages = messages_of(frames)
        except CodecError as error:
            return self._refuse(peer, error)
        return [send for each in messages for send in self._receive(peer, each, now)]

    def _receive(self, peer: bytes, frames: list[bytes], now: float) -> Sequence[Send]:
        core = self._core
        worker = core.worker_of.get(peer)
        chunk = read_lone(frames) or glance(frames)
        if chunk is not None and worker is not None:
            job = worker.jobs.get(chunk[0])
            if job is not None and job.state == "running" and chunk[1] == job.outbox.end:
                worker.heard = now
                return self._chunk(job, chunk[2], frames, now)
        try:
            message = decode(frames, FROM_WORKER)
        except CodecError as error:
            sends = self._refuse(peer, error)
            job = worker.jobs.get(error.run or "") if worker is not None else None
            if job is not None and job.state == "running":  # its stream has a hole for ever
                sends += core.lose_run(job, f"sent what is no message ({error})", now)
            return sends
        if isinstance(message, Hello):
            return self._hello(peer, message, now)
        if worker is None:
            return [_to(peer, Error("hello_required", "this worker is not known", True))]
        worker.heard = now
        return self._known(worker, peer, message, frames, now)

    def _refuse(self, peer: bytes, error: CodecError) -> list[Send]:
        self._core.observer.refused(error.code, "", error.request_id)
        return [_to(peer, Error(error.code, str(error)[:1000], False))]

    def unreachable(self, peer: bytes) -> None:
        """A message could not be sent: the connection is cut. The worker may come back."""
        worker = self._core.worker_of.pop(peer, None)
        if worker is not None:
            worker.peer = None

    def _hello(self, peer: bytes, hello: Hello, now: float) -> list[Send]:
        core = self._core
        if hello.role != "worker" or not hello.models or not hello.capacity:
            text = "this address is for workers, which say what they serve and their capacity"
            return [_to(peer, Error("bad_message", text, False))]
        sends: list[Send] = []
        bound = core.worker_of.get(peer)
        if bound is not None and bound.name != hello.name:
            sends += core.lose_worker(bound, "changed its name", now)
        worker = core.workers.get(hello.name)
        if worker is None:
            if len(core.workers) >= core.config.max_workers:
                text = f"{core.config.max_workers} workers are connected, no more may be"
                return [*sends, _to(peer, Error("busy", text, True, retry_after=1.0))]
            worker = WorkerRecord(hello.name, peer, now, hello.models, 0)
            core.workers[hello.name] = worker
            core.observer.event("worker_joined", worker=hello.name, models=list(hello.models))
        elif worker.peer is not None and worker.peer != peer:
            core.worker_of.pop(worker.peer, None)
        worker.peer, worker.heard, worker.bundles = peer, now, hello.bundles
        # a hello must be able to list all its runs
        worker.models, worker.capacity = hello.models, min(hello.capacity, MAX_ARRAY // 2)
        core.worker_of[peer] = worker
        sends.append(_to(peer, core.welcome()))
        return [*sends, *self._reconcile(worker, hello, now), *core.dispatch(now)]

    def _reconcile(self, worker: WorkerRecord, hello: Hello, now: float) -> list[Send]:
        """Compare the runs a worker says it has with those it should have."""
        core = self._core
        sends: list[Send] = []
        reported = {run.run for run in hello.runs}
        for run, job in list(worker.jobs.items()):
            if run not in reported and job.state == "running":
                sends += core.lose_run(job, "never got it or forgot it", now)
        for state in hello.runs:
            held = worker.jobs.get(state.run)
            if held is not None and held.outbox.end < state.first:
                sends += core.lose_run(held, "forgot a part of it", now)
            elif held is not None:
                sends += core.forward_credit(held, resend=True)
                if held.cancelled:
                    sends.append(_to(worker.peer or b"", Cancel(id=state.id, run=state.run)))
            else:
                sends += self._claim(worker, state, now)
        return sends

    def _claim(self, worker: WorkerRecord, state: RunState, now: float) -> list[Send]:
        """A worker brings a run that this broker did not give it."""
        core = self._core
        key = (state.tenant, state.client, state.id)
        if state.run in core.orphans:
            return []  # it said hello twice
        if state.run.startswith(f"{core.epoch}-"):
            return core.dismiss(worker, state.run, state.id)
        session = core.sessions.get(key[:2])
        job = session.jobs.get(state.id) if session is not None else None
        if job is None:
            expires = now + core.config.return_time
            core.orphans[state.run] = Orphan(worker, state, expires)
            return []
        if job.state not in ("held", "queued") or not job.continues(state):
            return core.dismiss(worker, state.run, state.id)
        core.line.discard(job)
        return core.adopt(job, worker, state, now)

    def _known(
        self, worker: WorkerRecord, peer: bytes, message: Message, frames: list[bytes], now: float
    ) -> Sequence[Send]:
        core = self._core
        if isinstance(message, (Chunk, Done, Error)):
            return self._about_run(worker, message, frames, now)
        if isinstance(message, Ping):
            return [_to(peer, Pong(message.nonce))]
        if isinstance(message, Stats):
            worker.stats = dict(message.stats)
            return []
        assert isinstance(message, Drain)
        worker.draining = True
        core.observer.event("worker_draining", worker=worker.name, reason=message.reason)
        if message.leaving:
            return core.lose_worker(worker, f"left ({message.reason})", now)
        return []

    def _about_run(
        self,
        worker: WorkerRecord,
        message: Chunk | Done | Error,
        frames: list[bytes],
        now: float,
    ) -> Sequence[Send]:
        core = self._core
        job = worker.jobs.get(message.run)
        if job is None:
            if not message.run or message.id is None or message.run in core.orphans:
                return []
            return core.dismiss(worker, message.run, message.id)
        if job.state == "ended":
            return []
        if isinstance(message, Error) and message.code == "engine_failed":
            sends = core.lose_run(job, f"failed ({message.message[:300]})", now)
            return sends + core.dispatch(now)
        return self._next_in_stream(job, message, frames, now)

    def _next_in_stream(
        self, job: Job, message: Chunk | Done | Error, frames: list[bytes], now: float
    ) -> Sequence[Send]:
        core = self._core
        if message.seq is None or message.seq < job.outbox.end:
            return []  # a duplicate
        if message.seq > job.outbox.end:
            return self._ask_again(job, now)
        if isinstance(message, Chunk):
            return self._chunk(job, message.position, frames, now)
        if isinstance(message, Done):
            reason = message.samples[0].reason if message.samples else "error"
        else:
            reason = message.code
        return [*core.end_as_told(job, frames, reason, now), *core.dispatch(now)]

    def _ask_again(self, job: Job, now: float) -> list[Send]:
        """Something is missing. Everything behind it says so too, and one request is enough."""
        missing, since = job.asked_again
        if missing == job.outbox.end and now - since < self._core.config.heartbeat / 2:
            return []
        job.asked_again = (job.outbox.end, now)
        return self._core.forward_credit(job, resend=True)

    def _chunk(self, job: Job, position: int, frames: list[bytes], now: float) -> Sequence[Send]:
        ids = frames[1]
        if job.submit.resume:
            job.emitted.append(ids)
        self._core.count_tokens(job, position, len(ids) // ID_BYTES, now)
        peer = job.session.peer
        if peer is not None and job.outbox.pass_on(frames):
            return (Send("front", peer, frames),)
        job.outbox.push(frames)
        return self._core.flush(job)


def _to(peer: bytes, message: Message) -> Send:
    return Send("back", peer, encode(message))
