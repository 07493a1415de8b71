"""A worker's side of the wire: what the broker says and the engine does, as data in and out.

Pure: it takes frames, the engine's events and the time; ``collect`` returns the messages to send
and ``take_commands`` those for the engine. Rules it keeps:
1. Nothing but hello is sent before the broker's welcome on the present connection.
2. What a run produced is kept until its ack, and sent again from where the broker says.
3. Health is true or absent: a worker whose engine died or hangs says so and leaves.
"""

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .bundle import bundled, messages_of
from .codec import CodecError, decode, encode
from .engine_driver import (
    BeginRun,
    CancelRun,
    Command,
    EngineDied,
    EngineFigures,
    EngineReady,
    Event,
    GrantCredit,
    RunRefused,
    Stepped,
)
from .limits import MAX_ARRAY
from .messages import (
    TO_WORKER,
    Ack,
    Cancel,
    Credit,
    Drain,
    Error,
    Hello,
    Message,
    Ping,
    Run,
    Stats,
    Welcome,
)
from .run_stream import RunStream

_GREETING_PAUSE = 0.25  # heartbeats between two hellos


class WorkerCore:
    """All state of a worker's wire."""

    def __init__(self, *, now: float, name: str | None = None, drain_limit: float = 30.0) -> None:
        self.name = name or uuid.uuid4().hex
        self.heartbeat = 1.0
        self.welcomed = False
        self._bundles = False  # the broker takes them
        self.left = False  # everything is said; send what collect returns, then go
        self.failure: str | None = None  # why it left, if that was no wish of the operator
        self.draining_until: float | None = None
        self.runs: dict[str, RunStream] = {}
        self._drain_limit = drain_limit
        self._ready: EngineReady | None = None
        self._figures: dict[str, Any] = {}
        self._heard = now
        self._pinged = now
        self._greeted: float | None = None
        self._ticked = now
        self._control: list[list[bytes]] = []
        self._changed: OrderedDict[str, None] = (
            OrderedDict()
        )  # runs that may have something to send
        self._commands: dict[tuple[type[Command], str], Command] = {}

    # From the broker

    def broker_frames(self, frames: Sequence[bytes], now: float) -> None:
        """Take one message of the broker. What is no message changes nothing."""
        try:
            messages = messages_of(frames)
        except CodecError:
            return
        for each in messages:
            self._receive(each, now)

    def _receive(self, frames: Sequence[bytes], now: float) -> None:
        try:
            message = decode(frames, TO_WORKER)
        except CodecError:
            return
        self._heard = now
        if isinstance(message, Welcome):
            self.heartbeat = max(message.heartbeat, 0.01)
            self.welcomed, self._bundles = True, message.bundles
            self._changed.update(dict.fromkeys(self.runs))
        elif isinstance(message, Error):
            if message.code == "hello_required":
                self.welcomed = False
                self._greet(now)
        elif isinstance(message, Run):
            self._begin(message)
        elif isinstance(message, Credit | Cancel | Ack):
            self._about_run(message)

    def _begin(self, run: Run) -> None:
        if run.run in self.runs:
            return
        stream = RunStream(run)
        self.runs[run.run] = stream
        self._changed[run.run] = None
        if self.draining_until is not None:
            stream.fail("engine_failed", "the worker is draining")
        else:
            self._command(BeginRun(run), run.run)

    def _about_run(self, message: Credit | Cancel | Ack) -> None:
        stream = self.runs.get(message.run)
        if stream is None:
            return
        if isinstance(message, Cancel):
            self._command(CancelRun(stream.run), stream.run)
        elif isinstance(message, Ack):
            if not stream.ended:  # nobody wants it any more
                self._command(CancelRun(stream.run), stream.run)
            del self.runs[stream.run]
            self._changed.pop(stream.run, None)
        else:
            if message.resend:
                stream.outbox.rewind(message.received)
                self._changed[stream.run] = None
            else:
                stream.outbox.acknowledge(message.received)
            self._command(GrantCredit(stream.run, message.tokens), stream.run)

    def _command(self, command: Command, run: str) -> None:
        self._commands[(type(command), run)] = command

    def take_commands(self, most: int) -> list[Command]:
        """Return up to ``most`` commands for the engine, in order; later ones replaced earlier."""
        keys = list(self._commands)[:most]
        return [self._commands.pop(key) for key in keys]

    # From the engine

    def engine_event(self, event: Event, now: float) -> None:
        """Take one event of the engine's thread."""
        if type(event) is Stepped:
            for delta in event:
                stream = self.runs.get(delta.request_id)
                if stream is not None:
                    stream.add(delta)
                    self._changed[stream.run] = None
            return
        match event:
            case RunRefused():
                stream = self.runs.get(event.run)
                if stream is not None:
                    stream.fail(event.code, event.message)
                    self._changed[stream.run] = None
            case EngineFigures():
                self._figures = dict(event.figures)
            case EngineReady():
                self._ready = event
                self._greet(now)
            case EngineDied():
                self.leave(f"its engine died: {event.message}", failed=True)

    def has_several_readers(self, stepped: Stepped) -> bool:
        """Whether a round's first and last gains go to different clients."""
        first = self.runs.get(stepped[0].request_id)
        last = self.runs.get(stepped[-1].request_id)
        return first is not None and last is not None and first.client != last.client

    # Time and ends

    def tick(self, now: float) -> bool:
        """Do what is due. True: nothing was heard for so long that the socket must be reopened."""
        pause, self._ticked = now - self._ticked, now
        if pause > self.heartbeat:  # this process stood still, not the broker
            self._heard = min(self._heard + pause, now)
        if self._ready is None or self.left:
            return False
        if now - self._pinged >= self.heartbeat / 2:
            self._pinged = now
            if self.welcomed:
                self._say(Ping())
                self._say(Stats(self._figures))
            else:
                self._greet(now)
        if self.draining_until is not None:
            if self.welcomed and all(stream.ended for stream in self.runs.values()):
                self.leave("drained")
            elif now >= self.draining_until:
                self.leave("drained, with runs unfinished")
        if now - self._heard > 3 * self.heartbeat:
            self._heard = now
            self.welcomed = False
            self._control.clear()
            self._greeted = None
            self._greet(now)
            return True
        return False

    def drain(self, now: float) -> None:
        """Take no more; leave when what runs has ended. A second call changes nothing."""
        if self.draining_until is not None or self.left:
            return
        self.draining_until = now + self._drain_limit
        if self._ready is None:
            self.leave("drained")
        else:
            self._say(Drain("the worker is shutting down"))

    def leave(self, reason: str, *, failed: bool = False) -> None:
        """Say good-bye. What is unfinished is lost here; the broker runs it elsewhere."""
        if self.left:
            return
        self.failure = reason if failed else None
        self._say(Drain(reason[:200], leaving=True))
        self.left = True

    def collect(self, at_least: int | None = None) -> Sequence[list[bytes]]:
        """Return the messages to send now, in order; all, or the first few if there are more."""
        if len(self._changed) == 1 and self.welcomed and not self._control:
            messages = self.runs[self._changed.popitem()[0]].take()  # the usual case
        elif self._changed or self._control:
            messages = self._collect(at_least)
        else:
            return ()
        if len(messages) < 2:
            return messages
        return bundled(messages) if self._bundles and self.welcomed else messages

    def _collect(self, at_least: int | None = None) -> list[list[bytes]]:
        messages, self._control = self._control, []
        if self.welcomed:
            while self._changed and (at_least is None or len(messages) < at_least):
                run, _ = self._changed.popitem(last=False)
                messages += self.runs[run].take()
        return messages

    def _say(self, message: Message) -> None:
        if self.welcomed:
            # whatever runs had before this message goes out before it
            self._control = [*self._collect(), encode(message)]

    def _greet(self, now: float) -> None:
        recent = self._greeted is not None and (
            now - self._greeted < _GREETING_PAUSE * self.heartbeat
        )
        if self._ready is None or self.left or recent:
            return
        self._greeted = now
        hello = Hello(
            role="worker",
            name=self.name,
            models=self._ready.models,
            capacity=self._ready.capacity,
            # what does not fit counts as lost; no broker gives a worker so many
            runs=tuple(stream.state() for stream in self.runs.values())[:MAX_ARRAY],
            bundles=True,
        )
        self._control.append(encode(hello))
