"""What the broker knows of clients, requests and workers."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from .admission import AdmissionLimits, Amount
from .messages import Run, RunState, Submit
from .outbox import Outbox
from .routing import Candidate
from .wire_params import Terms

Side = Literal["front", "back"]
JobState = Literal["held", "queued", "running", "ended"]
RequestKey = tuple[str, str, str]  # tenant, client name, request id


class Send(NamedTuple):
    """An action: send ``frames`` to one peer of one socket."""

    side: Side
    peer: bytes
    frames: list[bytes]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker's operator may set. Times are in seconds."""

    heartbeat: float = 1.0
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    max_clients: int = 4096
    max_workers: int = 256
    max_attempts: int = 3
    stall_limit: float = 60.0  # how long a request may stay without credit
    worker_wait: float = 30.0  # how long requests wait for a first worker
    drain_limit: float = 30.0

    @property
    def client_silence(self) -> float:
        """After this long without a message a client is gone."""
        return 1.75 * self.heartbeat

    @property
    def worker_silence(self) -> float:
        """After this long without a message a worker is lost."""
        return 3.0 * self.heartbeat

    @property
    def return_time(self) -> float:
        """How long a restarted broker waits for workers to come back with their runs."""
        return 3.0 * self.heartbeat


@dataclass(slots=True, eq=False)
class ClientSession:
    """A client, across its connections."""

    tenant: str
    name: str
    peer: bytes | None  # its present connection; None when that is known to be cut
    heard: float
    bundles: bool = False  # its present connection takes them
    jobs: dict[str, "Job"] = field(default_factory=dict)
    spent: OrderedDict[str, None] = field(default_factory=OrderedDict)  # ended and acknowledged


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker, across its connections."""

    name: str
    peer: bytes | None
    heard: float
    models: tuple[str, ...]
    capacity: int
    bundles: bool = False  # its present connection takes them
    draining: bool = False
    jobs: dict[str, "Job"] = field(default_factory=dict)  # by run; ended ones until acknowledged
    load: int = 0  # how many of them run
    stats: dict[str, Any] = field(default_factory=dict)

    def serves(self, model: str) -> bool:
        """Whether it takes requests for this model, or for any if none is named."""
        return not self.draining and (not model or model in self.models)

    def candidate(self) -> Candidate:
        """Return what routing needs to know of it."""
        free_blocks, free_rows = self._figure("free_blocks"), self._figure("free_rows")
        return Candidate(self.name, self.load, self.capacity, free_blocks, free_rows)

    def _figure(self, name: str) -> int:
        value = self.stats.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0


@dataclass(slots=True, eq=False)
class Job:
    """One request, from its admission until its end is acknowledged."""

    session: ClientSession
    submit: Submit
    terms: Terms
    amount: Amount
    seed: int
    arrived: float
    deadline: float | None
    credit: int
    outbox: Outbox
    hashes: list[bytes] = field(default_factory=list)
    state: JobState = "queued"
    worker: WorkerRecord | None = None
    run: str = ""
    attempts: int = 0
    tokens: int = 0  # sent to the client, all samples
    emitted: list[bytes] = field(default_factory=list)  # their ids, kept if it may resume
    cancelled: bool = False
    asked_again: tuple[int, float] = (0, float("-inf"))  # the missing message, and when
    stalled_since: float | None = None
    unserved_since: float | None = None
    started: float | None = None
    first_token: float | None = None

    @property
    def key(self) -> RequestKey:
        """What makes it one of a kind."""
        return (self.session.tenant, self.session.name, self.submit.id)

    def continues(self, run: RunState) -> bool:
        """Whether ``run``, from an earlier broker, goes on where this job stands.

        Attempts at one request cut its answer into other chunks, so a client that has some of one
        attempt can go on with no other, except from token ids.
        """
        here = self.outbox.end
        nothing_new = here == self.submit.received and run.first <= here
        return nothing_new and self.submit.run in ("", run.run)

    def run_message(self, now: float) -> Run:
        """Return what a worker is told: the request, and how far its answer has come."""
        params: dict[str, Any] = {**self.submit.params, "seed": self.seed}
        if self.tokens:  # what there is to say of the prompt came before them
            params.pop("prompt_logprobs", None)
        if self.deadline is not None:
            params["deadline"] = max(self.deadline - now, 0.001)
        submit = self.submit
        return Run(
            run=self.run,
            tenant=self.session.tenant,
            client=self.session.name,
            id=submit.id,
            kind=submit.kind,
            text=submit.text,
            messages=submit.messages,
            model=submit.model,
            params=params,
            window=max(self.credit, 1),
            linger=submit.linger,
            seq=self.outbox.end,
            prompt_ids=submit.prompt_ids,
            emitted_ids=b"".join(self.emitted),
        )

    def note_credit(self, now: float) -> None:
        """Remember since when it may emit no more, or that it may."""
        if self.tokens < self.credit:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = now


@dataclass(slots=True, eq=False)
class Orphan:
    """A run that a worker brought back to a restarted broker, until its client claims it."""

    worker: WorkerRecord
    run: RunState
    expires: float

    @property
    def key(self) -> RequestKey:
        """The request it belongs to."""
        return (self.run.tenant, self.run.client, self.run.id)


class BrokerObserver(Protocol):
    """Where the broker reports what happens, for metrics and logs."""

    def admitted(self, job: Job) -> None:
        """A request came in."""

    def refused(self, reason: str, tenant: str, request_id: str | None) -> None:
        """A request or message was not let in."""

    def dispatched(self, job: Job, held_prefix: bool, waited: float) -> None:
        """A request went to a worker."""

    def began(self, job: Job, now: float) -> None:
        """The first token of a request passed by."""

    def emitted(self, num_tokens: int) -> None:
        """So many tokens passed by since the last time. Not told of each: that would delay them."""

    def ended(self, job: Job, reason: str, now: float) -> None:
        """A request ended: a finish reason, or an error code."""

    def event(self, name: str, **details: object) -> None:
        """Something else worth a line in the log."""


class SilentObserver:
    """Reports nothing."""

    def admitted(self, job: Job) -> None:
        """Say nothing."""

    def refused(self, reason: str, tenant: str, request_id: str | None) -> None:
        """Say nothing."""

    def dispatched(self, job: Job, held_prefix: bool, waited: float) -> None:
        """Say nothing."""

    def began(self, job: Job, now: float) -> None:
        """Say nothing."""

    def emitted(self, num_tokens: int) -> None:
        """Say nothing."""

    def ended(self, job: Job, reason: str, now: float) -> None:
        """Say nothing."""

    def event(self, name: str, **details: object) -> None:
        """Say nothing."""


def canonical_prompt(submit: Submit) -> bytes:
    """Return bytes that begin alike for prompts that begin alike."""
    if submit.kind == "tokens":
        return submit.prompt_ids
    if submit.kind == "text":
        return submit.text.encode()
    parts: Iterable[str] = (f"{part.role}\x00{part.content}\x00" for part in submit.messages)
    return "".join(parts).encode()
