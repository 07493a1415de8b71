"""One request of a client that has not ended: what arrived, what was read, what may be sent."""

from dataclasses import dataclass, replace

from .limits import ID_BYTES
from .messages import Chunk, Credit, Submit


@dataclass(slots=True, eq=False)
class OpenRequest:
    """What a client knows of it. Times are in seconds."""

    submit: Submit
    begun: float
    ends_at: float | None
    granted: int
    reads_all: bool = False
    submitted: bool = False  # on any connection
    accepted: bool = False
    received: int = 0
    run: str = ""  # of the last message received
    tokens: int = 0
    consumed: int = 0
    cancelled: bool = False
    retry_at: float | None = None
    asked_again: tuple[int, float] = (-1, 0.0)
    emitted: list[bytes] | None = None  # token ids that arrived, if it may resume

    def take(self, chunk: Chunk) -> None:
        """Count the chunk that was due."""
        self.received += 1
        self.run = chunk.run
        self.tokens += len(chunk.ids) // ID_BYTES
        if self.emitted is not None:
            self.emitted.append(chunk.ids)

    def grant(self) -> Credit | None:
        """Return what to grant now: half a window at a time, or each token would cost a message."""
        if self.reads_all:
            self.consumed = self.tokens
        window = self.submit.window
        if self.granted - self.consumed > window // 2:
            return None
        self.granted = self.consumed + window
        return self.credit()

    def credit(self, *, resend: bool = False) -> Credit:
        """Return what is granted; with ``resend`` it asks for what is missing as well."""
        return Credit(self.submit.id, self.received, self.granted, resend)

    def again(self) -> Submit:
        """Return the message that asks for the rest, on another connection or after a refusal."""
        return replace(
            self.submit,
            again=True,
            received=self.received,
            run=self.run,
            emitted_ids=b"".join(self.emitted or ()),
        )

    def asks_again(self, now: float, pause: float) -> bool:
        """Whether to ask for what is missing: once for each gap, and again after ``pause``."""
        missing, asked = self.asked_again
        if missing == self.received and now - asked <= pause:
            return False
        self.asked_again = (self.received, now)
        return True
