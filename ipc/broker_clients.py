"""The broker's desk for clients: their messages become events of the core."""

import secrets
from collections.abc import Sequence

from .admission import Amount
from .broker_core import BrokerCore
from .broker_records import ClientSession, Job, Send, canonical_prompt
from .bundle import messages_of
from .codec import CodecError, decode, encode
from .limits import ID_BYTES, MAX_FRAME_BYTES, MAX_LABEL_BYTES
from .messages import (
    FROM_CLIENT,
    Accepted,
    Ack,
    Cancel,
    Credit,
    Error,
    Hello,
    Message,
    Ping,
    Pong,
    Stats,
    Submit,
)
from .outbox import Outbox
from .routing import prefix_hashes
from .stats_report import broker_stats, worker_stats
from .wire_params import Terms, read_terms

LOGPROB_BYTES = 16  # about what an id and its log-probability take on the wire
MAX_SPENT = 256  # ids remembered per client after their end was acknowledged


class ClientDesk:
    """Takes frames from the frontend."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def receive(self, peer: bytes, frames: Sequence[bytes], tenant: str, now: float) -> list[Send]:
        """Handle one message. ``tenant`` comes from the connection's key; hello binds it."""
        try:
            messages = messages_of(frames)
        except CodecError as error:
            return self._refuse(peer, error, tenant)
        return [send for each in messages for send in self._receive(peer, each, tenant, now)]

    def _receive(self, peer: bytes, frames: Sequence[bytes], tenant: str, now: float) -> list[Send]:
        core = self._core
        session = core.session_of.get(peer)
        if session is not None:
            session.heard = now
        try:
            message = decode(frames, FROM_CLIENT)
        except CodecError as error:
            return self._refuse(peer, error, tenant)
        if isinstance(message, Hello):
            return self._hello(peer, message, tenant, now)
        if session is None:
            text = "this connection is not known: say hello, then submit open requests again"
            return [_to(peer, Error("hello_required", text, True))]
        return self._known(session, peer, message, now)

    def _refuse(self, peer: bytes, error: CodecError, tenant: str) -> list[Send]:
        self._core.observer.refused(error.code, tenant, error.request_id)
        return [_to(peer, Error(error.code, str(error)[:1000], False, id=error.request_id))]

    def unreachable(self, peer: bytes) -> None:
        """A message could not be sent: the connection is cut. The client may come back."""
        session = self._core.session_of.pop(peer, None)
        if session is not None:
            session.peer = None

    def _hello(self, peer: bytes, hello: Hello, tenant: str, now: float) -> list[Send]:
        core = self._core
        if hello.role != "client":
            return [_to(peer, Error("bad_message", "this address is for clients", False))]
        bound = core.session_of.get(peer)
        session = core.sessions.get((tenant, hello.name))
        if session is None:
            if len(core.sessions) >= core.config.max_clients:
                core.observer.refused("busy", tenant, None)
                text = f"{core.config.max_clients} clients are connected, no more may be"
                return [_to(peer, Error("busy", text, True, retry_after=1.0))]
            session = ClientSession(tenant, hello.name, peer, now)
            core.sessions[(tenant, hello.name)] = session
        if session.peer is not None and session.peer != peer:
            core.session_of.pop(session.peer, None)
        sends: list[Send] = []
        if bound is not None and bound is not session:  # a connection changes its name
            bound.peer = None
            sends = core.lose_client(bound, now)
        session.peer, session.heard, session.bundles = peer, now, hello.bundles
        core.session_of[peer] = session
        sends.append(_to(peer, core.welcome()))
        for job in session.jobs.values():
            newest = job.outbox.newest()
            if job.state == "ended" and newest is not None:
                sends.append(Send("front", peer, newest))  # the ack may have been lost
        return sends

    def _known(
        self, session: ClientSession, peer: bytes, message: Message, now: float
    ) -> list[Send]:
        core = self._core
        sends: list[Send] = []
        match message:
            case Submit():
                sends = self._submit(session, peer, message, now)
            case Ping():
                sends = [_to(peer, Pong(message.nonce))]
            case Stats():
                sends = [_to(peer, Stats(broker_stats(core, now), worker_stats(core)))]
            case Credit() | Cancel() | Ack():
                job = session.jobs.get(message.id)
                if job is not None:
                    sends = self._about_job(job, message, now)
        return sends

    def _about_job(self, job: Job, message: Credit | Cancel | Ack, now: float) -> list[Send]:
        if isinstance(message, Credit):
            return self._credit(job, message, now)
        if isinstance(message, Cancel):
            return self._cancel(job, now)
        if job.state != "ended":
            return []  # an ack of what has not ended
        return self._acknowledge(job, now)

    def _credit(self, job: Job, message: Credit, now: float) -> list[Send]:
        core = self._core
        if message.resend:
            job.outbox.rewind(message.received)
        else:
            job.outbox.acknowledge(message.received)
        return [*core.grant(job, message.tokens, now), *core.flush(job)]

    def _cancel(self, job: Job, now: float) -> list[Send]:
        core = self._core
        if job.state == "ended":
            return []
        job.cancelled = True
        if job.state != "running" or job.worker is None:
            return core.end_without_answer(job, "cancelled", now)
        if job.worker.peer is None:
            return []  # told when it returns; if it does not, the job ends as cancelled
        return [Send("back", job.worker.peer, encode(Cancel(id=job.submit.id, run=job.run)))]

    def _acknowledge(self, job: Job, now: float) -> list[Send]:
        session = job.session
        session.spent[job.submit.id] = None
        while len(session.spent) > MAX_SPENT:
            session.spent.popitem(last=False)
        return self._core.forget(job, now)

    def _submit(
        self, session: ClientSession, peer: bytes, submit: Submit, now: float
    ) -> list[Send]:
        core = self._core
        job = session.jobs.get(submit.id)
        if job is not None:
            job.outbox.rewind(submit.received)
            return [_to(peer, Accepted(id=submit.id, seed=job.seed)), *core.flush(job)]
        outcome = self._admit(session, submit, now)
        if isinstance(outcome, Error):
            core.observer.refused(outcome.code, session.tenant, submit.id)
            return [_to(peer, outcome)]
        session.jobs[submit.id] = outcome
        core.observer.admitted(outcome)
        accepted = Accepted(id=submit.id, seed=outcome.seed)
        return [_to(peer, accepted), *self._place(outcome, now)]

    def _admit(self, session: ClientSession, submit: Submit, now: float) -> Job | Error:
        if submit.id in session.spent:
            text = "this id was submitted, ended and acknowledged before; use a new one"
            return _refusal(submit, "already_finished", text)
        try:
            terms = self._terms(submit)
        except ValueError as error:
            return _refusal(submit, "bad_request", str(error))
        closed = self._closed_to(submit)
        if closed is not None:
            return closed
        amount = _amount(submit, terms)
        refused = self._core.admission.admit(session.tenant, amount)
        if refused is not None:
            code = "too_large" if refused.retry_after is None else "busy"
            return _refusal(submit, code, refused.message, refused.retry_after)
        return self._new_job(session, submit, terms, amount, now)

    def _terms(self, submit: Submit) -> Terms:
        terms = read_terms(submit.params)
        if submit.resume and terms.samples != 1:
            raise ValueError(f"resume needs n = 1, not {terms.samples}")
        if submit.resume and terms.max_tokens > MAX_FRAME_BYTES // ID_BYTES:
            most = MAX_FRAME_BYTES // ID_BYTES
            raise ValueError(f"resume needs max_tokens of at most {most}, not {terms.max_tokens}")
        if submit.emitted_ids and not (submit.resume and submit.again):
            raise ValueError("emitted token ids are for requests with resume, submitted again")
        salt = submit.params.get("salt")
        if isinstance(salt, str) and len(salt) > MAX_LABEL_BYTES:
            raise ValueError(f"salt must be at most {MAX_LABEL_BYTES} characters")
        return terms

    def _closed_to(self, submit: Submit) -> Error | None:
        core = self._core
        if core.draining_until is not None:
            return _refusal(submit, "draining", "the broker is shutting down", 1.0)
        served = core.models()
        if not served:
            return None  # a worker may still come
        if not submit.model and len(served) > 1:
            text = f"several models are served, name one of {', '.join(served)}"
            return _refusal(submit, "unknown_model", text)
        if submit.model and submit.model not in served:
            text = f"no worker serves {submit.model!r}, only {', '.join(served)}"
            return _refusal(submit, "unknown_model", text)
        return None

    def _new_job(
        self, session: ClientSession, submit: Submit, terms: Terms, amount: Amount, now: float
    ) -> Job:
        emitted = len(submit.emitted_ids) // ID_BYTES
        salt = f"{session.tenant}\x00{submit.params.get('salt') or ''}\x00{submit.model}"
        return Job(
            session=session,
            submit=submit,
            terms=terms,
            amount=amount,
            seed=secrets.randbits(63) if terms.seed is None else terms.seed,
            arrived=now,
            deadline=None if terms.deadline is None else now + terms.deadline,
            credit=emitted + submit.window,
            outbox=Outbox(submit.received),
            hashes=prefix_hashes(canonical_prompt(submit), salt.encode()),
            tokens=emitted,
            emitted=[submit.emitted_ids] if submit.emitted_ids else [],
        )

    def _place(self, job: Job, now: float) -> list[Send]:
        """Give a new job to the worker that has its run already, hold it, or queue it."""
        core = self._core
        sends: list[Send] = []
        for orphan in [each for each in core.orphans.values() if each.key == job.key]:
            del core.orphans[orphan.run.run]
            if job.state == "queued" and job.continues(orphan.run):
                sends += core.adopt(job, orphan.worker, orphan.run, now)
            else:
                sends += core.dismiss(orphan.worker, orphan.run.run, job.submit.id)
        if job.state == "running":
            return sends
        if job.submit.again and now < core.started + core.config.return_time:
            job.state = "held"
            return sends
        if job.submit.again:
            return [*sends, *core.release_held(job, now), *core.dispatch(now)]
        core.enqueue(job)
        return [*sends, *core.dispatch(now)]


def _amount(submit: Submit, terms: Terms) -> Amount:
    """Text counts as a token every four bytes, or the limits would need a tokenizer."""
    prompt = len(canonical_prompt(submit))
    prompt_tokens = -(-prompt // ID_BYTES)
    scores = prompt_tokens * terms.prompt_entries * LOGPROB_BYTES  # kept until they are received
    num_bytes = prompt + len(submit.emitted_ids) + scores
    return Amount(1, prompt_tokens + terms.max_tokens * terms.samples, num_bytes)


def _refusal(submit: Submit, code: str, message: str, retry_after: float | None = None) -> Error:
    """What may be tried again says when."""
    retryable = retry_after is not None
    return Error(code, message[:1000], retryable, id=submit.id, retry_after=retry_after)


def _to(peer: bytes, message: Message) -> Send:
    return Send("front", peer, encode(message))
