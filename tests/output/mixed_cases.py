"""A mixed batch with every setting, and one with stops planted all over; asked once in each way."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from demo_engines import Asked, ask, demo_prompts, parts_of
from planted import plant

from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=22, temperature=0.0, logprobs=2)
SAMPLED = SamplingParams(max_tokens=18, temperature=0.8, seed=7, logprobs=3)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def prompt(number: int) -> Any:
    one = demo_prompts()[number]
    return one[:120] if isinstance(one, str) else one


def free_cases() -> list[tuple[Any, SamplingParams]]:
    """Every setting, on prompts whose answers go well with it."""
    processed = replace(SAMPLED, logprobs_mode="processed")
    return [
        (prompt(0), GREEDY),
        (prompt(23), replace(GREEDY, max_tokens=40)),
        (prompt(44), SAMPLED),
        (prompt(45), replace(SAMPLED, temperature=1.3, top_p=0.7)),
        (prompt(1), replace(processed, top_k=5)),
        (prompt(26), replace(processed, min_p=0.1, logprobs=0)),
        (prompt(3), replace(GREEDY, repetition_penalty=1.4, logprobs=None)),
        (prompt(24), replace(SAMPLED, presence_penalty=0.7, frequency_penalty=0.9)),
        (prompt(31), replace(processed, frequency_penalty=-0.4, repetition_penalty=0.9)),
        (prompt(27), replace(GREEDY, logit_bias={11: 4.0, 12: -50.0, 300: 2.5})),
        (prompt(32), replace(GREEDY, min_tokens=15)),
        *(  # would end as soon as they may
            (prompt(32), replace(GREEDY, min_tokens=least, logit_bias={8191: 30.0}))
            for least in (4, 6, 9)
        ),
        (prompt(33), GREEDY),  # ends by itself
        (prompt(33), replace(GREEDY, ignore_eos=True)),
        (prompt(46), replace(SAMPLED, include_stop=True)),
        (prompt(24), replace(GREEDY, banned_tokens=tuple(range(260, 2000, 3)))),
        (prompt(22), replace(SAMPLED, allowed_tokens=tuple(range(0, 600)))),
        (prompt(49), replace(SAMPLED, n=2, prompt_logprobs=1)),
        (prompt(48), replace(SAMPLED, max_tokens=7, seed=8)),
        (prompt(28), replace(SAMPLED, max_tokens=40, json_schema=json.dumps(PERSON))),
        (prompt(29), replace(GREEDY, regex=r"\{\"x\": -?\d{1,3}, \"y\": -?\d{1,3}\}( ok){0,3}")),
        (prompt(33), replace(GREEDY, grammar='start: "The " /[a-z ]{3,30}/ ("." | "!")')),
    ]


@cache
def planted_cases() -> list[tuple[Any, SamplingParams]]:
    """Stops of one to six tokens at many places of greedy answers, of all kinds."""
    cases: list[tuple[Any, SamplingParams]] = []
    tokenizer = parts_of("off").loaded.tokenizer
    numbers = (0, 23, 45, 31)
    asked = ask(parts_of("off"), [(prompt(number), GREEDY) for number in numbers])
    for number, one in zip(numbers, asked, strict=True):
        ids = one.answer.token_ids
        for after, num_tokens in ((3, 2), (6, 3), (9, 5), (12, 2)):
            stop = plant(tokenizer, ids, after, num_tokens)
            never = ("\x00never", stop.string + "\x00")  # held as long as it may be
            params = replace(GREEDY, stop=(*never, stop.string), include_stop=after % 2 == 0)
            cases.append((prompt(number), params))
        new = next(token for place, token in enumerate(ids) if place > 6 and token not in ids[:6])
        cases.append((prompt(number), replace(GREEDY, stop_token_ids=(new,), include_stop=True)))
        cases.append((prompt(number), replace(GREEDY, stop_token_ids=(new,))))
    return cases


CASES: dict[str, Callable[[], list[tuple[Any, SamplingParams]]]] = {
    "settings": free_cases,
    "stops": planted_cases,
}


@cache
def asked_of(kind: str, way: int | str) -> list[Asked]:
    return ask(parts_of(way), CASES[kind]())
