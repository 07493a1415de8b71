"""Exact engines of the demo model: without drafts, with its MTP head at any depth, with lookup."""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from engine.answer import Answer, Delta, TokenLogprob
from engine.build import Parts, build
from engine.drafting.lookup_drafter import LookupDrafter
from engine.engine import Engine
from engine.loading import DEMO_PROMPTS
from engine.sampling_params import SamplingParams
from scheduler.round import UNKNOWN
from scheduler.sequence import Sequence as Sequence_

WAYS = ("off", 1, 2, 3, 4, "lookup")
"""How an engine drafts: not at all, so many a round with the MTP head, three by lookup.

Beside them there is "ahead": without drafts, but the next round's rows are launched early; and
"ahead by turns": the same between rounds that draft.
"""

MEMORY = {"max_rows": 24, "num_blocks": 400, "max_context": 640, "exact": True, "check": True}


@cache
def _built(speculate: int | str, acceptance: str) -> Parts:
    return build("demo", speculate=speculate, acceptance=acceptance, **MEMORY)


class ByTurns:
    """Six rounds without drafts, then two of three drafts a row, and so on."""

    def __init__(self) -> None:
        self.number = 0

    def depths(self, sequences: Sequence[Sequence_], num_waiting: int) -> list[int]:
        self.number += 1
        return [0 if self.number % 8 < 6 else 3] * len(sequences)

    def rests(self, sequences: Sequence[Sequence_], num_waiting: int) -> bool:
        rests = (self.number + 1) % 8 < 6
        self.number += rests
        return rests

    def holds_back(self) -> None:
        pass

    def forget_round(self) -> None:
        pass


class PartsByTurns(Parts):
    """Parts of an engine that drafts by turns."""

    def make_depth_policy(self) -> ByTurns:
        return ByTurns()


def parts_of(way: int | str, acceptance: str = "coupled", **changes: Any) -> Parts:
    """The parts of an engine that drafts this way; all but "off" share their memory."""
    if way in ("off", "ahead"):
        parts = _built("off", "coupled")
        options = replace(parts.options, async_scheduling=way == "ahead")
        parts = replace(parts, options=options)
    elif way == "ahead by turns":
        parts = _built(4, "coupled")
        options = replace(parts.options, acceptance=acceptance, async_scheduling=True)
        shared = {field.name: getattr(parts, field.name) for field in fields(parts)}
        parts = PartsByTurns(**shared | {"options": options})
    else:
        parts = _built(4, "coupled")
        executor = copy.copy(parts.executor)
        if way == "lookup":
            executor.drafter = LookupDrafter()
        depth = 3 if way == "lookup" else way
        options = replace(parts.options, speculate=depth, acceptance=acceptance)
        parts = replace(parts, executor=executor, options=options)
    return replace(parts, scheduler_config=replace(parts.scheduler_config, **changes))


def parts_in_order(depth: int) -> Parts:
    """The same parts as if on kernels that need no wait, with rounds that run ahead."""
    parts = parts_of(depth)
    executor = copy.copy(parts.executor)
    executor.drafter = copy.copy(executor.drafter)
    executor.in_order = executor.drafter.in_order = True
    options = replace(parts.options, async_scheduling=True)
    return replace(parts, executor=executor, options=options)


def demo_prompts() -> list[Any]:
    """The bundled prompts: texts first, then conversations."""
    lines = map(json.loads, DEMO_PROMPTS.read_text().splitlines())
    return [line.get("messages") or line["prompt"] for line in lines]


@dataclass
class Asked:
    """A request, and all that came of one of its samples."""

    prompt: Any
    params: SamplingParams
    deltas: list[Delta] = field(default_factory=list)
    picked: list[int] = field(default_factory=list)  # tokens the target gave with each delta

    @property
    def answer(self) -> Answer:
        answer = Answer(self.deltas[0].request_id, self.deltas[0].index, 0)
        for delta in self.deltas:
            answer.add(delta)
        return answer

    @property
    def num_cut(self) -> int:
        """How many accepted tokens were dropped behind the end."""
        return self.picked[-1] - len(self.deltas[-1].token_ids)


@dataclass(frozen=True)
class Said:
    """What must not depend on drafts."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: str
    error: str | None
    counts: tuple[int, int, int]

    @classmethod
    def of(cls, answer: Answer) -> "Said":
        usage = answer.usage
        return cls(
            answer.text,
            tuple(answer.token_ids),
            None if answer.logprobs is None else tuple(answer.logprobs),
            answer.finish_reason,
            answer.error,
            (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        )


class Listening:
    """An executor that remembers how many tokens each verdict had before it was shortened."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.num_picked: dict[int, int] = {}  # by sequence, in the last round
        self.total_picked: Counter[int] = Counter()
        self.num_launched = 0  # rows whose token was not known yet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, *args: Any) -> Any:
        return self._listen(self._executor.run(*args))

    def launch(self, round_: Any, *args: Any) -> Any:
        self.num_launched += sum(row.tokens == (UNKNOWN,) for row in round_.rows)
        return self._executor.launch(round_, *args)

    def read(self, *args: Any) -> Any:
        return self._listen(self._executor.read(*args))

    def _listen(self, verdicts: Any) -> Any:
        self.num_picked = {verdict.seq_id: len(verdict.tokens) for verdict in verdicts}
        self.total_picked.update(self.num_picked)
        return verdicts


def ask(
    parts: Parts,
    cases: Iterable[tuple[Any, SamplingParams]],
    listening: Listening | None = None,
) -> list[Asked]:
    """Run all cases together in a new engine; return samples in order, and leave nothing behind."""
    listening = listening or Listening(parts.executor)
    engine = Engine(replace(parts, executor=listening))
    samples: dict[tuple[str, int], Asked] = {}
    for prompt, params in cases:
        request_id = engine.submit(prompt, params)
        for index in range(params.n):
            samples[request_id, index] = Asked(prompt, params)
    by_seq = {
        seq_id: samples[request_id, index]
        for request_id, seq_ids in engine.runs.by_request.items()
        for index, seq_id in enumerate(seq_ids)
    }
    while engine.has_work:
        listening.num_picked = {}
        deltas = engine.step()
        for delta in deltas:
            samples[delta.request_id, delta.index].deltas.append(delta)
        for seq_id, asked in by_seq.items():
            if len(asked.picked) < len(asked.deltas):
                asked.picked.append(listening.num_picked.get(seq_id, 0))
    assert_nothing_left(engine)
    assert engine.stats().scheduler.failures == 0
    return list(samples.values())


def assert_nothing_left(engine: Engine) -> None:
    stats = engine.stats().scheduler
    assert not engine.runs.by_sequence
    assert not engine.runs.by_request
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots


def said(asked: Sequence[Asked]) -> list[Said]:
    return [Said.of(one.answer) for one in asked]
