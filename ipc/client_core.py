"""A client's side of the wire: requests, credit, retries and reconnection, as data in and out.

Pure: it takes what the user asks, the broker's frames and the time; ``take_outgoing`` returns the
messages to send and ``take_events`` what the user gets. Rules it keeps:
1. A request ends exactly once, in Done or Error, whatever happens to broker and connection.
2. Chunks reach the user in order, each once; what is missing is asked for again.
3. A reader that does not read grants no credit; ``read_all`` grants it as chunks arrive.
"""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .bundle import bundled, messages_of
from .chunk_codec import read_chunk
from .codec import CodecError, decode_generally, encode
from .messages import (
    TO_CLIENT,
    Accepted,
    Ack,
    Cancel,
    Chunk,
    Done,
    Error,
    Hello,
    Message,
    Ping,
    SampleEnd,
    Stats,
    Submit,
    Welcome,
)
from .open_request import OpenRequest

StreamEvent = Accepted | Chunk | Done | Error
RETRIED = ("busy", "draining")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times are in seconds."""

    retry_for: float = 60.0  # how long "busy" and "draining" are retried
    patience: float = 30.0  # without a word of the broker, after which requests fail


class ClientCore:
    """All state of a client's wire."""

    def __init__(
        self,
        *,
        now: float,
        config: ClientConfig | None = None,
        name: str | None = None,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.name = name or uuid.uuid4().hex
        self.heartbeat = 1.0
        self.welcomed = False
        self._bundles = False  # the broker takes them
        self.epoch = ""
        self.models: tuple[str, ...] = ()
        self._config = config or ClientConfig()
        self._spread = spread
        self._requests: dict[str, OpenRequest] = {}
        self._heard = now
        self._pinged = now
        self._greeted: float | None = None
        self._ticked = now
        self._outgoing: list[list[bytes]] = []
        self._events: list[tuple[str, StreamEvent]] = []
        self._stats: list[Stats] = []
        self._asked_stats = 0
        self._greet(now)

    @property
    def num_open(self) -> int:
        """How many requests have not ended."""
        return len(self._requests)

    # What the user asks

    def submit(self, submit: Submit, now: float, *, timeout: float | None = None) -> None:
        """Send a request. Its id must be new."""
        if submit.id in self._requests:
            raise ValueError(f"request id {submit.id!r} is in use")
        if not self._requests and now - self._heard > self.heartbeat:
            self._heard = max(self._heard, now - self.heartbeat)
        ends_at = None if timeout is None else now + timeout
        emitted: list[bytes] | None = [] if submit.resume else None
        request = OpenRequest(submit, now, ends_at, granted=submit.window, emitted=emitted)
        self._requests[submit.id] = request
        if self.welcomed:
            self._send_submit(request)

    def consume(self, request_id: str, tokens: int) -> None:
        """The reader has taken so many tokens more."""
        request = self._requests.get(request_id)
        if request is not None:
            request.consumed += tokens
            self._grant(request)

    def read_all(self, request_id: str) -> None:
        """The reader takes whatever comes: grant credit on arrival from now on."""
        request = self._requests.get(request_id)
        if request is not None:
            request.reads_all = True
            self._grant(request)

    def cancel(self, request_id: str) -> None:
        """End a request. Harmless when it has ended."""
        request = self._requests.get(request_id)
        if request is None or request.cancelled:
            return
        request.cancelled = request.reads_all = True
        if request.submitted and request.retry_at is None:
            self._send(Cancel(request_id))
        else:
            self._end(request, _cancelled_here(request.submit))

    def ask_stats(self) -> None:
        """Ask the broker for its figures; ``take_stats`` has them later."""
        self._asked_stats += 1
        self._send(Stats())

    # From the broker

    def receive(self, frames: Sequence[bytes], now: float) -> None:
        """Take one message. What is no message changes nothing."""
        if len(frames) != 1:  # the usual case: a bundle is one frame
            self._receive(frames, now)
            return
        try:
            messages = messages_of(frames)
        except CodecError:
            return
        for each in messages:
            self._receive(each, now)

    def _receive(self, frames: Sequence[bytes], now: float) -> None:
        chunk = read_chunk(frames)
        if chunk is not None:
            request = self._requests.get(chunk.id)
            if request is not None and chunk.seq == request.received:  # the usual case
                self._heard = now
                self._chunk(request, chunk)
                return
        try:
            message = chunk or decode_generally(frames, TO_CLIENT)
        except CodecError:
            return
        self._heard = now
        self._take(message, now)

    def _take(self, message: Message, now: float) -> None:
        if isinstance(message, Welcome):
            self._welcome(message)
        elif isinstance(message, Error) and message.id is None:
            self._connection_error(message, now)
        elif isinstance(message, Stats):
            self._asked_stats = max(self._asked_stats - 1, 0)
            self._stats.append(message)
        elif isinstance(message, (Accepted, Chunk, Done, Error)):
            request = self._requests.get(message.id or "")
            if request is not None:
                self._stream(request, message, now)
            elif isinstance(message, (Done, Error)) and message.seq is not None:
                self._send(Ack(message.id or ""))  # it ended here already
            elif isinstance(message, Chunk):
                self._send(Cancel(message.id))  # given up here; the first cancel was lost

    def _welcome(self, welcome: Welcome) -> None:
        self.heartbeat = max(welcome.heartbeat, 0.01)
        self.models, self.epoch, self.welcomed = welcome.models, welcome.epoch, True
        self._bundles = welcome.bundles
        for request in self._requests.values():
            if request.retry_at is None:
                self._send_submit(request)
        if self._asked_stats:
            self._send(Stats())

    def _connection_error(self, error: Error, now: float) -> None:
        if error.code == "hello_required":
            self.welcomed = False
            self._greet(now)
        elif error.code == "unsupported_version":
            self._fail_all(error.code, error.message, retryable=False)

    def _stream(self, request: OpenRequest, message: StreamEvent, now: float) -> None:
        if type(message) is Chunk and message.seq == request.received:
            self._chunk(request, message)
            return
        if isinstance(message, Accepted):
            if not request.accepted:
                request.accepted = True
                self._events.append((request.submit.id, message))
            return
        if isinstance(message, Error) and message.seq is None:
            self._refused(request, message, now)
            return
        seq = message.seq or 0
        if seq < request.received:
            return
        if seq > request.received:
            if request.asks_again(now, self.heartbeat / 2):
                self._send(request.credit(resend=True))
            return
        assert isinstance(message, Done | Error)
        request.received += 1
        request.run = message.run
        self._send(Ack(request.submit.id))
        self._end(request, message)

    def _chunk(self, request: OpenRequest, chunk: Chunk) -> None:
        request.take(chunk)
        self._events.append((chunk.id, chunk))
        if request.reads_all and (credit := request.grant()) is not None:
            self._send(credit)

    def _refused(self, request: OpenRequest, error: Error, now: float) -> None:
        late = now - request.begun > self._config.retry_for
        if error.code in RETRIED and not late and not request.cancelled:
            wait = (error.retry_after or 0.1) * (0.75 + 0.5 * self._spread())
            request.retry_at = now + wait
        else:
            self._end(request, error)

    # Time

    def tick(self, now: float) -> bool:
        """Do what is due. True: the broker is silent, and the socket must be reopened."""
        pause, self._ticked = now - self._ticked, now
        if pause > self.heartbeat:  # this process stood still, not the broker
            self._heard = min(self._heard + pause, now)
        for request in list(self._requests.values()):
            self._tick_request(request, now)
        if now - self._pinged >= self.heartbeat / 2:
            self._pinged = now
            if self.welcomed:
                self._send(Ping())
            else:
                self._greet(now)
        silent = now - self._heard
        if silent > self._config.patience and self._requests:
            text = f"nothing was heard from the broker for {silent:.1f} s"
            self._fail_all("unreachable", text, retryable=True)
        if silent > 3 * self.heartbeat and (
            self.welcomed or now - (self._greeted or now) > 3 * self.heartbeat
        ):
            self.reconnected(now)
            return True
        return False

    def reconnected(self, now: float) -> None:
        """The socket is a new one."""
        self.welcomed = False
        self._outgoing.clear()
        self._greeted = None
        self._greet(now)

    def _tick_request(self, request: OpenRequest, now: float) -> None:
        if request.ends_at is not None and now >= request.ends_at:
            if request.submitted:
                self._send(Cancel(request.submit.id))
            text = f"no end within {now - request.begun:.1f} s; it is cancelled"
            error = Error("timeout", text, True, id=request.submit.id, progress=request.tokens)
            self._end(request, error)
        elif request.retry_at is not None and now >= request.retry_at and self.welcomed:
            request.retry_at = None
            request.submitted = False
            self._send_submit(request)

    def fail(self, code: str, message: str) -> None:
        """End every request: the client is closed or broken."""
        self._fail_all(code, message, retryable=True)

    def _fail_all(self, code: str, message: str, *, retryable: bool) -> None:
        for request in list(self._requests.values()):
            text = message[:1000]
            error = Error(code, text, retryable, id=request.submit.id, progress=request.tokens)
            self._end(request, error)

    # Out

    def take_outgoing(self) -> Sequence[list[bytes]]:
        """Return the messages to send, in order."""
        outgoing = self._outgoing
        if not outgoing:
            return ()  # the usual case
        self._outgoing = []
        return bundled(outgoing) if self._bundles and self.welcomed else outgoing

    def take_events(self) -> list[tuple[str, StreamEvent]]:
        """Return what happened to requests, in order."""
        events, self._events = self._events, []
        return events

    def take_stats(self) -> list[Stats]:
        """Return the broker's figures that have arrived."""
        stats, self._stats = self._stats, []
        return stats

    def _end(self, request: OpenRequest, message: Done | Error) -> None:
        del self._requests[request.submit.id]
        self._events.append((request.submit.id, message))

    def _grant(self, request: OpenRequest) -> None:
        credit = request.grant()
        if credit is not None:
            self._send(credit)

    def _send_submit(self, request: OpenRequest) -> None:
        if not request.submitted:
            request.submitted = True
            self._send(request.submit)
            return
        self._send(request.again())
        self._send(request.credit())
        if request.cancelled:
            self._send(Cancel(request.submit.id))

    def _send(self, message: Message) -> None:
        if self.welcomed:
            self._outgoing.append(encode(message))

    def _greet(self, now: float) -> None:
        if self._greeted is not None and now - self._greeted < self.heartbeat / 4:
            return
        self._greeted = now
        self._outgoing.append(encode(Hello(role="client", name=self.name, bundles=True)))


def _cancelled_here(submit: Submit) -> Done:
    """The end of a request that no broker has, as a broker would put it."""
    count, seed = submit.params.get("n"), submit.params.get("seed")
    samples = range(count if isinstance(count, int) and count > 0 else 1)
    ends = tuple(SampleEnd(index, "cancelled") for index in samples)
    return Done(submit.id, 0, seed if isinstance(seed, int) else 0, ends)
