"""An engine that answers without a model: to test clients, brokers and faults against.

Every token is a pure function of (prompt, seed, sample, position), so that any answer can be
checked, and an answer that went on elsewhere equals one that did not. Words in a text prompt ask
for faults: ``!refuse``, ``!fail`` (the request), ``!raise``, ``!hang``, ``!die`` (the engine), the
last three after ``FAULT_AFTER`` tokens.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .served_engine import LoadedEngine, LogprobLike
from .token_ids import pack_ids
from .wire_params import read_terms

FAULT_AFTER = 3
VOCABULARY = 50_000


@dataclass(frozen=True, slots=True)
class FakeUsage:
    """As ``engine.answer.Usage``."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FakeLogprob:
    """As ``engine.answer.TokenLogprob``."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class FakeDelta:
    """As ``engine.answer.Delta``."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Sequence[LogprobLike] | None = None
    finish_reason: str | None = None
    usage: FakeUsage | None = None
    error: str | None = None
    prompt_logprobs: Sequence[LogprobLike | None] | None = None


@dataclass(slots=True)
class FakeOptions:
    """How fast and how wide; ``parse`` reads ``fake:step=0.01,rows=4``."""

    step: float = 0.0  # seconds a round takes
    rows: int = 8
    tokens: int = 1  # a sample and round
    capacity: int = 0  # 0: twice the rows
    name: str = "fake"

    @classmethod
    def parse(cls, text: str) -> "FakeOptions":
        """Read what follows ``fake`` in a model's name. Raises ValueError naming what is wrong."""
        options = cls()
        for part in filter(None, text.removeprefix("fake").removeprefix(":").split(",")):
            name, _, value = part.partition("=")
            if name not in cls.__slots__:
                raise ValueError(f"a fake engine has no {name!r}, only {', '.join(cls.__slots__)}")
            setattr(options, name, type(getattr(options, name))(value))
        return options


def fake_tokens(prompt: bytes, seed: int, index: int, start: int, count: int) -> tuple[int, ...]:
    """Return tokens ``start`` to ``start + count - 1`` of the answer to ``prompt``."""
    key = hashlib.blake2b(prompt, digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    base = int.from_bytes(key, "little") + index * 7_919
    return tuple(
        (base * (position + 3) ^ (base >> 7) + position * 104_729) % VOCABULARY
        for position in range(start, start + count)
    )


def fake_text(tokens: Sequence[int]) -> str:
    """Return the text of tokens."""
    return "".join(f" {token}" for token in tokens)


def fake_prompt_logprobs(prompt: bytes, likeliest: int) -> list[FakeLogprob | None]:
    """Return an entry for every byte of ``prompt`` but the first."""
    top = tuple((token, -1.0) for token in range(likeliest))
    return [None, *(FakeLogprob(byte, -byte / 8, top) for byte in prompt[1:])]


def prompt_bytes(prompt: Any) -> bytes:
    """Return what an answer depends on."""
    if isinstance(prompt, str):
        return prompt.encode()
    if prompt and isinstance(prompt[0], Mapping):
        return "\n".join(f"{part['role']}: {part['content']}" for part in prompt).encode()
    return pack_ids(prompt)


@dataclass(slots=True)
class _Sample:
    request_id: str
    index: int
    prompt: bytes
    params: Mapping[str, Any]
    produced: int
    ends_at: float | None
    paused: bool = False
    cancelled: bool = False
    spoken: bool = False

    @property
    def seed(self) -> int:
        return int(self.params.get("seed") or 0)


@dataclass(slots=True)
class FakeEngine:
    """See the module. ``clock`` and ``sleep`` are passed in."""

    options: FakeOptions = field(default_factory=FakeOptions)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    samples: dict[tuple[str, int], _Sample] = field(default_factory=dict)
    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0

    @property
    def has_work(self) -> bool:
        """Whether any sample may go on."""
        return any(not sample.paused or sample.cancelled for sample in self.samples.values())

    def submit(
        self,
        prompt: Any,
        params: Mapping[str, Any],
        *,
        request_id: str,
        tenant: str = "",
        emitted: Sequence[int] = (),
    ) -> str:
        """Take a request. Raises ValueError for an empty prompt, bad numbers and ``!refuse``."""
        read_terms(params)
        content = prompt_bytes(prompt)
        if not content:
            raise ValueError("the prompt is empty: it must have at least one token")
        if b"!refuse" in content:
            raise ValueError("the prompt asks to be refused")
        if type(params.get("logprobs") or 0) is not int:
            raise ValueError(f"logprobs is {params['logprobs']!r}: it must be a whole number")
        unknown = set(params) - {"max_tokens", "seed", "n", "logprobs", "deadline", "salt"}
        if unknown - {"temperature", "ignore_eos", "prompt_logprobs"}:
            raise ValueError(f"a fake engine does not know {', '.join(sorted(unknown))}")
        deadline = params.get("deadline")
        ends_at = None if deadline is None else self.clock() + deadline
        for index in range(params.get("n") or 1):
            sample = _Sample(request_id, index, content, params, len(emitted), ends_at)
            self.samples[(request_id, index)] = sample
        return request_id

    def step(self) -> list[FakeDelta]:
        """Give every running sample its next tokens."""
        if self.options.step:
            self.sleep(self.options.step)
        rows = [sample for sample in self.samples.values() if not sample.paused or sample.cancelled]
        self.num_steps += 1
        self.num_rows += len(rows[: self.options.rows])
        return [self._advance(sample) for sample in rows[: self.options.rows]]

    def _advance(self, sample: _Sample) -> FakeDelta:
        max_tokens = sample.params.get("max_tokens") or 256
        reason = "cancelled" if sample.cancelled else None
        if reason is None and sample.ends_at is not None and self.clock() >= sample.ends_at:
            reason = "deadline"
        tokens: tuple[int, ...] = ()
        error = None
        if reason is None:
            self._suffer(sample)
            count = min(self.options.tokens, max_tokens - sample.produced)
            tokens = fake_tokens(sample.prompt, sample.seed, sample.index, sample.produced, count)
            sample.produced += count
            self.num_tokens += count
            if b"!fail" in sample.prompt and sample.produced >= FAULT_AFTER:
                reason, error = "error", "the prompt asks to fail"
            elif sample.produced >= max_tokens:
                reason = "length"
        usage = None
        if reason is not None:
            del self.samples[(sample.request_id, sample.index)]
            usage = FakeUsage(len(sample.prompt), sample.produced)
        logprobs = None
        if sample.params.get("logprobs") is not None:
            top = sample.params["logprobs"]
            logprobs = [FakeLogprob(t, -0.5, tuple((i, -1.0) for i in range(top))) for t in tokens]
        likeliest = sample.params.get("prompt_logprobs")
        about_prompt = None
        if likeliest is not None and not sample.spoken:
            about_prompt = fake_prompt_logprobs(sample.prompt, likeliest)
        sample.spoken = True
        return FakeDelta(
            sample.request_id,
            sample.index,
            fake_text(tokens),
            tokens,
            logprobs,
            reason,
            usage,
            error,
            about_prompt,
        )

    def _suffer(self, sample: _Sample) -> None:
        if sample.produced < FAULT_AFTER or b"!" not in sample.prompt:
            return
        if b"!raise" in sample.prompt:
            raise RuntimeError("the prompt asks the engine to raise")
        if b"!hang" in sample.prompt:
            self.sleep(3600)
        if b"!die" in sample.prompt:
            os._exit(9)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step."""
        for sample in self._of(request_id):
            sample.cancelled = True

    def pause(self, request_id: str) -> None:
        """Give it no tokens for now."""
        for sample in self._of(request_id):
            sample.paused = True

    def resume(self, request_id: str) -> None:
        """End a pause."""
        for sample in self._of(request_id):
            sample.paused = False

    def stats(self) -> Mapping[str, Any]:
        """Return a few figures."""
        return {
            "num_running": len(self.samples),
            "generated_tokens": self.num_tokens,
            "mean_batch_width": self.num_rows / max(self.num_steps, 1),
        }

    def _of(self, request_id: str) -> list[_Sample]:
        return [sample for sample in self.samples.values() if sample.request_id == request_id]


def load_fake(model: str) -> LoadedEngine:
    """Return a fake engine for a model named ``fake`` or ``fake:OPTIONS``."""
    options = FakeOptions.parse(model)
    capacity = options.capacity or 2 * options.rows
    return LoadedEngine(FakeEngine(options), dict, (options.name,), options.rows, capacity)
