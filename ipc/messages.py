"""The messages of the wire, as docs/protocol.md describes them. Data only.

Attachment frames are ``bytes`` of raw little-endian uint32 token ids; ``ipc.token_ids`` converts.
Between client and broker ``run`` may be empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .limits import DEFAULT_WINDOW

PromptKind = Literal["text", "messages", "tokens"]
Logprob = tuple[int, float, tuple[tuple[int, float], ...]]
"""A token id, its log-probability, and the likeliest (id, log-probability) at its position."""


@dataclass(frozen=True, slots=True)
class RunState:
    """One run that a worker holds, as its hello reports it."""

    run: str
    tenant: str
    client: str
    id: str
    first: int  # the oldest message it keeps
    seq: int  # the next sequence number it will use
    tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a client or worker on every connection."""

    role: str
    name: str
    models: tuple[str, ...] = ()
    capacity: int = 0
    runs: tuple[RunState, ...] = ()
    bundles: bool = False  # it takes them


@dataclass(frozen=True, slots=True)
class Welcome:
    """The broker's answer to hello."""

    epoch: str
    heartbeat: float
    models: tuple[str, ...] = ()
    bundles: bool = False  # it takes them


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Submit:
    """A client's request."""

    id: str
    kind: PromptKind
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    model: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    window: int = DEFAULT_WINDOW
    resume: bool = False
    linger: float = 0.0  # seconds
    again: bool = False
    received: int = 0
    run: str = ""  # with again: of the last message received
    prompt_ids: bytes = b""
    emitted_ids: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at one request, from broker to worker."""

    run: str
    tenant: str
    client: str
    id: str
    kind: PromptKind
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    model: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    window: int = DEFAULT_WINDOW
    linger: float = 0.0
    seq: int = 0
    prompt_ids: bytes = b""
    emitted_ids: bytes = b""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is admitted."""

    id: str
    seed: int


@dataclass(slots=True)  # not frozen: one is made for every chunk, and that takes four times as long
class Piece:
    """What one sample gained; with ``reason`` and ``usage`` if it ended."""

    index: int
    count: int
    text: str
    logprobs: tuple[Logprob, ...] | None = None
    reason: str | None = None
    usage: Mapping[str, int] | None = None
    prompt_logprobs: tuple[Logprob | None, ...] | None = None  # a part of the prompt's
    prompt_start: int = 0  # the position of the first of them


@dataclass(slots=True)  # not frozen: one is made for every chunk, and that takes four times as long
class Chunk:
    """What a request gained in one round, or in several when the way is slow."""

    id: str
    seq: int
    position: int
    pieces: tuple[Piece, ...]
    run: str = ""
    ids: bytes = b""


@dataclass(frozen=True, slots=True)
class SampleEnd:
    """How one sample ended."""

    index: int
    reason: str
    usage: Mapping[str, int] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request that was answered."""

    id: str
    seq: int
    seed: int
    samples: tuple[SampleEnd, ...]
    run: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """A refusal, or the end of a request that was not answered."""

    code: str
    message: str
    retryable: bool
    id: str | None = None
    seq: int | None = None
    retry_after: float | None = None
    progress: int | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class Credit:
    """How much of a stream has arrived, and how many of its tokens may be sent in all."""

    id: str
    received: int
    tokens: int
    resend: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request. Idempotent."""

    id: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """The end of a request has arrived."""

    id: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """I live; do you?"""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """A client's question (empty), a worker's figures, or the broker's answer."""

    stats: Mapping[str, Any] = field(default_factory=dict)
    workers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """The sender admits nothing more; or, to a worker: finish what runs, then leave."""

    reason: str = ""
    leaving: bool = False


Message = (
    Hello
    | Welcome
    | Submit
    | Run
    | Accepted
    | Chunk
    | Done
    | Error
    | Credit
    | Cancel
    | Ack
    | Ping
    | Pong
    | Stats
    | Drain
)

FROM_CLIENT = (Hello, Submit, Credit, Cancel, Ack, Ping, Stats)
TO_CLIENT = (Welcome, Accepted, Chunk, Done, Error, Pong, Stats, Drain)
FROM_WORKER = (Hello, Chunk, Done, Error, Ping, Stats, Drain)
TO_WORKER = (Welcome, Run, Credit, Cancel, Ack, Pong, Error)
