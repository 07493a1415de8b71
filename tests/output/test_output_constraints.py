"""Grammars through the engine: what ends is valid, what is cut short may still become it."""

import json
import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import pytest
from demo_engines import WAYS, Asked, Said, ask, assert_nothing_left, parts_of, said
from mixed_cases import GREEDY, SAMPLED, prompt
from random_schemas import random_schema

from engine.constraint import ConstraintCompiler
from engine.engine import Engine
from engine.errors import RequestError
from engine.sampling_params import SamplingParams

PROMPTS = (24, 28, 29, 30)
NEIGHBOURS = (0, 2, 5)  # among the dead ends


@cache
def compiler() -> ConstraintCompiler:
    loaded = parts_of("off").loaded
    return ConstraintCompiler(loaded.tokenizer, loaded.vocab_size, loaded.eos_ids)


def schema_cases(count: int, seed: int, max_tokens: int) -> list[tuple[Any, SamplingParams]]:
    generator = random.Random(seed)
    cases = []
    for number in range(count):
        schema = json.dumps(random_schema(generator))
        base = GREEDY if number % 2 else replace(SAMPLED, seed=number, temperature=1.0)
        params = replace(base, logprobs=None, max_tokens=max_tokens, json_schema=schema)
        cases.append((prompt(PROMPTS[number % len(PROMPTS)]), params))
    return cases


def check_answers(asked: list[Asked]) -> int:
    """What ended parses and satisfies its schema, the rest is a beginning; count what ended."""
    num_ended = 0
    for one in asked:
        answer, schema = one.answer, one.params.json_schema
        if answer.finish_reason == "eos":
            num_ended += 1
            value = json.loads(answer.text)
            jsonschema.validate(value, json.loads(schema), jsonschema.Draft202012Validator)
        else:
            assert answer.finish_reason == "length"
        matcher = compiler().compile(SamplingParams(json_schema=schema))
        assert matcher.try_advance(answer.token_ids) == len(answer.token_ids)
        assert matcher.ended == (answer.finish_reason == "eos")
    return num_ended


def test_json_satisfies_its_schema_and_is_the_same_with_drafts() -> None:
    cases = schema_cases(24, 1, 24)
    plain, drafted = ask(parts_of("off"), cases), ask(parts_of(3), cases)

    assert said(drafted) == said(plain)
    assert check_answers(plain) > 12
    assert any(one.answer.finish_reason == "length" for one in plain)
    assert sum(one.answer.usage.accepted_tokens for one in drafted) > 50
    assert any(one.num_cut for one in drafted)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["off", 1, 2, 3, 4, "lookup"])
def test_two_hundred_random_schemas_are_satisfied(way: int | str) -> None:
    asked = ask(parts_of(way), schema_cases(200, 2, 64))

    assert check_answers(asked) > 150
    assert said(asked) == plain_soak()


@cache
def plain_soak() -> list[Said]:
    return said(ask(parts_of("off"), schema_cases(200, 2, 64)))


REGEX = r"[A-Z][a-z]{2,4}(, [A-Z][a-z]{2,4}){2}\."
LARK = 'start: item (", " item){0,2} "!"\nitem: "one" | "two" | /[a-c]{2,4}/'


@pytest.mark.parametrize("way", WAYS)
def test_a_regex_and_a_lark_grammar_are_followed(way: int | str) -> None:
    base = SamplingParams(max_tokens=30, temperature=0.9, seed=5)
    cases = [
        *((prompt(24), replace(base, regex=REGEX, seed=seed)) for seed in range(2)),
        *((prompt(24), replace(base, grammar=LARK, seed=seed)) for seed in range(2)),
    ]
    patterns = [REGEX] * 2 + [r"(one|two|[a-c]{2,4})(, (one|two|[a-c]{2,4})){0,2}!"] * 2
    for one, pattern in zip(ask(parts_of(way), cases), patterns, strict=True):
        assert one.answer.finish_reason == "eos"
        assert re.fullmatch(pattern, one.answer.text)


def test_a_broken_constraint_is_refused_and_nobody_notices() -> None:
    (alone,) = ask(parts_of(3), [(prompt(24), GREEDY)])
    engine = Engine(parts_of(3))
    request_id = engine.submit(prompt(24), GREEDY)
    deltas = [*engine.step(), *engine.step()]
    for broken, reason in (
        ({"json_schema": '{"type": "intege"}'}, "Invalid type: intege"),
        ({"json_schema": "{"}, "it is not JSON"),
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "start: x"}, "unknown name"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos is True"),
    ):
        with pytest.raises(RequestError, match=reason):
            engine.submit(prompt(24), SamplingParams(**broken))
    while engine.has_work:
        deltas += engine.step()

    assert {delta.request_id for delta in deltas} == {request_id}
    assert tuple(token for delta in deltas for token in delta.token_ids) == tuple(
        alone.answer.token_ids
    )
    assert_nothing_left(engine)


def dead_ends() -> list[tuple[Any, SamplingParams]]:
    """A grammar whose tail nothing matches; one that banned tokens leave no way out of."""
    tokenizer = parts_of("off").loaded.tokenizer
    digits = tuple(
        token for token in range(8189) if any(map(str.isdigit, tokenizer.decode([token])))
    )
    nowhere = 'start: "one two three four" X\nX: /[^\\s\\S]/'
    banned = replace(GREEDY, regex="seven dogs and [0-9] cats", banned_tokens=digits)
    return [
        (prompt(24), GREEDY),
        (prompt(24), replace(GREEDY, grammar=nowhere)),
        (prompt(25), replace(SAMPLED, seed=2)),
        (prompt(24), banned),
        (prompt(24), replace(banned, stop=("dogs and \x00",))),
        (prompt(23), GREEDY),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_dead_end_is_an_error_that_says_so_and_the_others_go_on(way: int | str) -> None:
    asked = ask(parts_of(way), dead_ends())

    answers = [one.answer for one in asked]
    assert [answers[n].finish_reason for n in (1, 3, 4)] == ["error"] * 3
    assert "the grammar cannot be matched: " in answers[1].error
    assert [answers[n].error for n in (3, 4)] == [
        "no token that may be said satisfies the constraint here"
    ] * 2
    assert [answers[n].text for n in (3, 4)] == ["seven dogs and "] * 2
    assert answers[1].text in ("one two three", "one two three four")
    for answer in answers:
        assert answer.usage.completion_tokens == len(answer.token_ids) > 0
        assert len(answer.logprobs) == len(answer.token_ids)
    assert said(asked) == plain_dead_ends()
    assert [said(asked)[n] for n in NEIGHBOURS] == [plain_neighbours()[n] for n in NEIGHBOURS]


@cache
def plain_dead_ends() -> list[Said]:
    return said(ask(parts_of("off"), dead_ends()))


@cache
def plain_neighbours() -> dict[int, Said]:
    cases = dead_ends()
    alone = said(ask(parts_of("off"), [cases[n] for n in NEIGHBOURS]))
    return dict(zip(NEIGHBOURS, alone, strict=True))


def test_a_dead_end_that_only_a_draft_runs_into_harms_nobody() -> None:
    """Lookup drafts what followed before, which leads nowhere; the target says something else."""
    encode = parts_of("off").loaded.tokenizer.encode
    go, bad, good = encode("Go on"), encode(" bad"), encode(" good")
    assert (len(bad), len(good)) == (1, 1)
    params = SamplingParams(
        max_tokens=20,
        temperature=0.0,
        grammar='start: "Go on" (" bad" X | " good")\nX: /[^\\s\\S]/',
        logit_bias={bad[0]: -50.0, good[0]: 50.0},
    )
    ids = [*encode("Say it. "), *go, *bad, *go, *bad, *go, *bad]
    plain, drafted = (ask(parts_of(way), [(ids, params)])[0] for way in ("off", "lookup"))

    assert (plain.answer.finish_reason, plain.answer.text) == ("eos", "Go on good")
    assert Said.of(drafted.answer) == Said.of(plain.answer)
    assert drafted.answer.usage.drafted_tokens > drafted.answer.usage.accepted_tokens
