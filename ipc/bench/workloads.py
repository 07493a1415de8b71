"""The named workloads: what many kinds of users ask, over the bundled prompts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from engine.sampling_params import SamplingParams

from .prompts import Prompts, cycle_unlike
from .session import Message, Session

NUM_TURNS = 4
NUM_EXAMPLES = 12
PERSON: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 20},
        "job": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city", "job"],
    "additionalProperties": False,
}
PEOPLE = (
    ("Ben", 36, "London", "cook"),
    ("Violet", 37, "Athens", "weaver"),
    ("Emma", 33, "Chicago", "baker"),
    ("Paul", 51, "Paris", "painter"),
    ("Nora", 26, "Oslo", "sailor"),
    ("Walter", 62, "Boston", "judge"),
    ("Martha", 44, "Berlin", "doctor"),
    ("Louis", 29, "Madrid", "farmer"),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of load. ``make(prompts, sessions, tokens)`` returns its sessions.

    ``tokens`` is the most tokens of an answer. ``concurrency``: that many users at a time, where
    this is what the workload is about.
    """

    name: str
    about: str
    make: Callable[[Prompts, int, int], list[Session]]
    num_sessions: int
    num_tokens: int
    concurrency: int | None = None

    def sessions(
        self, prompts: Prompts, num_sessions: int | None = None, num_tokens: int | None = None
    ) -> list[Session]:
        """Return the sessions, by default as many and as long as the workload says."""
        return self.make(prompts, num_sessions or self.num_sessions, num_tokens or self.num_tokens)


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0)


def _ask(question: str, system: str | None = None) -> tuple[Message, ...]:
    user = {"role": "user", "content": question}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def _numbered(
    name: str, openings: Sequence[str | tuple[Message, ...]], params: SamplingParams
) -> list[Session]:
    return [Session(f"{name}-{at}", opening, params) for at, opening in enumerate(openings)]


def _offline(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    """Three short texts, one long one, and so on; answers of uneven lengths, sampled."""
    short, long = iter(cycle_unlike(prompts.passages)), iter(cycle_unlike(prompts.long_texts))
    sessions = []
    for at in range(count):
        text = next(long) if at % 4 == 3 else next(short)
        length = max(1, tokens * (1 + at % 3) // 3)
        params = SamplingParams(max_tokens=length, temperature=0.8, seed=at, ignore_eos=True)
        sessions.append(Session(f"offline-{at}", text, params))
    return sessions


def _shared_prompt(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    system = (
        "Answer briefly. Some of the questions are about this text.\n\n" + prompts.long_texts[0]
    )
    questions = islice(cycle(prompts.questions), count)
    return _numbered("shared", [_ask(each, system) for each in questions], _greedy(tokens))


def _chat(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    questions = prompts.questions
    sessions = []
    for at in range(count):
        first, *others = islice(cycle(questions), at, at + NUM_TURNS)
        opening = _ask(first, f"User {at + 1} talks to you. You are a careful assistant.")
        sessions.append(Session(f"chat-{at}", opening, _greedy(tokens), tuple(others)))
    return sessions


def _few_shot(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    examples = "".join(
        f"Text: {text}\nKind: {'speech' if chr(34) in text else 'narration'}\n\n"
        for text in prompts.passages[:NUM_EXAMPLES]
    )
    asked = islice(cycle(prompts.paragraphs), count)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, stop=("\n",))
    return _numbered("few-shot", [f"{examples}Text: {text}\nKind:" for text in asked], params)


def _json(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, json_schema=json.dumps(PERSON))
    told = (
        f"Convert to JSON: {name} is {age + at}, lives in {city} and works as a {job}."
        for at, (name, age, city, job) in enumerate(islice(cycle(PEOPLE), count))
    )
    return _numbered("json", [_ask(each) for each in told], params)


def _long_arrivals(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    """Most rows decode; the rest are long prompts that come in one by one meanwhile."""
    num_long = max(1, count // 3)
    num_decoding = max(1, count - num_long)
    steady = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    decoding = [
        Session(f"decoding-{at}", text, steady, group="decoding")
        for at, text in enumerate(islice(cycle_unlike(prompts.passages), num_decoding))
    ]
    apart = num_decoding * tokens // (num_long + 1)
    arriving = [
        Session(
            f"long-{at}",
            text,
            _greedy(max(1, tokens // 6)),
            group="long prompt",
            after_tokens=(at + 1) * apart,
        )
        for at, text in enumerate(islice(cycle_unlike(prompts.long_texts), num_long))
    ]
    return decoding + arriving


def _single(prompts: Prompts, count: int, tokens: int) -> list[Session]:
    questions = islice(cycle(prompts.questions), count)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return _numbered("single", [_ask(each) for each in questions], params)


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("offline", "a batch of mixed lengths, three short prompts to a long one",
                 _offline, 24, 96),
        Workload("shared-prompt", "many users behind one long system prompt",
                 _shared_prompt, 24, 48),
        Workload("chat", f"conversations of {NUM_TURNS} turns over the model's own answers",
                 _chat, 8, 48),
        Workload("few-shot", "classification: a long prefix of examples, answers of a word",
                 _few_shot, 32, 4),
        Workload("json", "answers that a JSON schema constrains", _json, 16, 96),
        Workload("long-arrivals", "long prompts that come in while other rows decode",
                 _long_arrivals, 9, 96),
        Workload("single", "one user alone, one question after another", _single, 4, 96, 1),
    )
}  # fmt: skip
"""The workloads by name."""
