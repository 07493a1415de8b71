"""One run's answer on its way to the broker: deltas are joined into chunks, chunks are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .codec import encode
from .limits import MAX_ARRAY, MAX_ERROR_BYTES
from .lone_chunk import names_of, write_lone
from .messages import Chunk, Done, Error, Logprob, Piece, Run, RunState, SampleEnd
from .outbox import Outbox
from .served_engine import DeltaLike, LogprobLike, UsageLike
from .token_ids import pack_ids

_MAX_WEIGHT = 8192  # tokens and entries of logprobs in a chunk
_MAX_TEXT = 1 << 17  # characters in a chunk


@dataclass(slots=True)
class _Gain:
    """What one sample gained since the last chunk."""

    text: list[str]
    ids: list[int]
    logprobs: list[Any] | None = None
    reason: str | None = None
    usage: dict[str, int] | None = None


class RunStream:
    """Gathers what a run gains; several rounds become one chunk while the way is blocked."""

    def __init__(self, run: Run) -> None:
        self.run = run.run
        self.id = run.id
        self.tenant = run.tenant
        self.client = run.client
        self.seed = int(run.params.get("seed") or 0)
        self.outbox = Outbox(run.seq)
        self.ended = False
        self._samples = int(run.params.get("n") or 1)
        self._names = names_of(run.id, run.run)
        self._position = len(run.emitted_ids) // 4
        self._ends: dict[int, SampleEnd] = {}
        self._lone: DeltaLike | None = None  # all there is to send, in the usual case
        self._gains: dict[int, _Gain] = {}
        self._weight = 0
        self._text = 0
        self._prompt_told = False

    def state(self) -> RunState:
        """Return what a hello says of this run. Pending gains have no sequence number yet."""
        return RunState(
            run=self.run,
            tenant=self.tenant,
            client=self.client,
            id=self.id,
            first=self.outbox.first,
            seq=self.outbox.end,
            tokens=self._position,
            seed=self.seed,
        )

    def add(self, delta: DeltaLike) -> None:
        """Take what a sample gained in a round."""
        if self.ended:
            return
        lone = self._lone
        if (
            lone is None
            and not self._gains
            and delta.finish_reason is None
            and delta.logprobs is None
            and delta.prompt_logprobs is None
        ):
            self._lone = delta  # the usual case
            return
        if lone is not None:
            self._lone = None
            self._gather(lone)
        self._gather(delta)

    def _gather(self, delta: DeltaLike) -> None:
        if delta.prompt_logprobs is not None and not self._prompt_told:
            self._prompt_told = True  # every sample brings them, and they are the same
            self._tell_prompt(delta.index, delta.prompt_logprobs)
        logprobs = delta.logprobs
        entries = sum(1 + len(entry.top) for entry in logprobs) if logprobs is not None else 0
        weight = len(delta.token_ids) + entries
        if self._weight + weight > _MAX_WEIGHT or self._text + len(delta.text) > _MAX_TEXT:
            self._make_chunk()
        self._weight += weight
        self._text += len(delta.text)
        gain = self._gains.get(delta.index)
        if gain is None:
            gain = self._gains[delta.index] = _Gain([delta.text], list(delta.token_ids))
        else:
            gain.text.append(delta.text)
            gain.ids += delta.token_ids
        if logprobs is not None:
            gain.logprobs = gain.logprobs or []
            gain.logprobs += [_logprob(entry) for entry in logprobs]
        if delta.finish_reason is not None:
            gain.reason = delta.finish_reason
            gain.usage = _usage(delta.usage)
            # a thousand long errors would not fit one message
            longest = MAX_ERROR_BYTES // 4 if self._samples <= 64 else 100
            error = None if delta.error is None else delta.error[:longest]
            self._ends[delta.index] = SampleEnd(delta.index, gain.reason, gain.usage, error)

    def fail(self, code: str, message: str) -> None:
        """End the run with an error."""
        if self.ended:
            return
        self._make_chunk()
        self._finish(
            Error(
                code=code,
                message=message[: MAX_ERROR_BYTES // 4],
                retryable=code == "engine_failed",
                id=self.id,
                seq=self.outbox.end,
                progress=self._position,
                run=self.run,
            )
        )

    def take(self) -> list[list[bytes]]:
        """Return the messages to send now, in order."""
        lone, outbox = self._lone, self.outbox
        if lone is not None:
            ids = lone.token_ids
            at, count = self._position, len(ids)
            frame = write_lone(
                self._names, outbox.end, at, index=lone.index, count=count, text=lone.text
            )
            if frame is not None:
                self._lone = None
                self._position += count
                frames = [frame, pack_ids(ids)]
                if outbox.pass_on(frames):
                    return [frames]
                outbox.push(frames)
                return outbox.take()
        self._make_chunk()
        if self._ends and len(self._ends) == self._samples and not self.ended:
            samples = tuple(self._ends[index] for index in sorted(self._ends))
            self._finish(Done(self.id, self.outbox.end, self.seed, samples, self.run))
        return self.outbox.take()

    def _finish(self, message: Done | Error) -> None:
        self.ended = True
        self.outbox.push(encode(message))

    def _tell_prompt(self, index: int, entries: Sequence[LogprobLike | None]) -> None:
        """Make chunks of what is known of the prompt, each of a bounded size."""
        self._make_chunk()
        start = 0
        while start < len(entries):
            part: list[Logprob | None] = []
            weight = 0
            for entry in entries[start : start + MAX_ARRAY]:
                weight += 1 if entry is None else 1 + len(entry.top)
                if part and weight > _MAX_WEIGHT:
                    break
                part.append(None if entry is None else _logprob(entry))
            piece = Piece(index, 0, "", prompt_logprobs=tuple(part), prompt_start=start)
            chunk = Chunk(self.id, self.outbox.end, self._position, (piece,), self.run)
            self.outbox.push(encode(chunk))
            start += len(part)

    def _make_chunk(self) -> None:
        lone, self._lone = self._lone, None
        if lone is not None:
            self._gather(lone)
        if not self._gains:
            return
        pieces = []
        ids: list[int] = []
        for index, gain in sorted(self._gains.items()):
            logprobs = None if gain.logprobs is None else tuple(gain.logprobs)
            text = "".join(gain.text)
            pieces.append(Piece(index, len(gain.ids), text, logprobs, gain.reason, gain.usage))
            ids += gain.ids
        self.outbox.push(
            encode(
                Chunk(
                    *(self.id, self.outbox.end, self._position, tuple(pieces)),
                    run=self.run,
                    ids=pack_ids(ids),
                )
            )
        )
        self._position += len(ids)
        self._gains.clear()
        self._weight = self._text = 0


def _logprob(entry: LogprobLike) -> Logprob:
    return (entry.token_id, entry.logprob, entry.top)


def _usage(usage: UsageLike | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens,
    }
