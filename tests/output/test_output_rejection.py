"""The classical rule through the engine: other answers, as likely, by every setting."""

import json
import re
from collections import Counter
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from demo_engines import Asked, ask, parts_of, said
from mixed_cases import PERSON, SAMPLED, asked_of, free_cases, prompt
from tiny_models import as_loaded, tiny_model

from engine.build import Parts, build_parts
from engine.drafting.plan import plan_peer
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams


def rejecting(way: int | str) -> Parts:
    return parts_of(way, acceptance="rejection")


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    return ask(rejecting(3), free_cases())


def test_every_setting_is_respected(asked: list[Asked]) -> None:
    for one in asked:
        answer, params = one.answer, one.params
        ids = answer.token_ids
        assert len(ids) == answer.usage.completion_tokens <= params.max_tokens
        assert answer.finish_reason in ("length", "eos")
        assert not set(ids) & set(params.banned_tokens or ())
        if params.allowed_tokens is not None:
            assert set(ids) <= set(params.allowed_tokens)
        if params.logprobs is not None:
            assert [entry.token_id for entry in answer.logprobs] == ids
        if params.logprobs_mode == "processed":
            assert all(np.isfinite(entry.logprob) for entry in answer.logprobs)
        if answer.finish_reason == "eos":
            assert len(ids) >= params.min_tokens
            if params.json_schema is not None:
                jsonschema.validate(json.loads(answer.text), PERSON)
            if params.regex is not None:
                assert re.fullmatch(params.regex, answer.text)
    assert sum(one.answer.usage.accepted_tokens for one in asked) > 100


def test_an_answer_follows_from_its_seed(asked: list[Asked]) -> None:
    some = ask(rejecting(3), free_cases()[:12:3])

    assert said(some) == said(asked[:12:3])
    params = replace(SAMPLED, seed=1, temperature=1.3)
    cases = [(prompt(45), replace(params, seed=seed)) for seed in range(4)]
    texts = [one.answer.text for one in ask(rejecting(3), cases)]
    assert len(set(texts)) == 4
    assert texts == [ask(rejecting(3), [case])[0].answer.text for case in cases]


def test_greedy_answers_are_those_without_drafts(asked: list[Asked]) -> None:
    plain = asked_of("settings", "off")
    greedy = [number for number, one in enumerate(plain) if one.params.temperature == 0]

    assert [said(asked)[number] for number in greedy] == [said(plain)[number] for number in greedy]


PROMPT = [5, 17, 40, 8, 61]
ALLOWED = (3, 20, 44, 71, 90)
PARAMS = SamplingParams(max_tokens=3, temperature=1.2, allowed_tokens=ALLOWED, n=64)
NUM_REQUESTS = 18


def outcome_probabilities(prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Of every answer of three tokens, from mlx-lm's own forward passes."""
    import mlx.core as mx

    model = tiny_model("qwen3_5")
    beginnings: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(PARAMS.max_tokens):
        longer = {}
        for said_before, probability in beginnings.items():
            logits = np.array(model(mx.array([[*prompt, *said_before]]))[0, -1], np.float64)
            weights = np.exp(logits[list(ALLOWED)] / PARAMS.temperature)
            for token, weight in zip(ALLOWED, weights / weights.sum(), strict=True):
                longer[(*said_before, token)] = probability * weight
        beginnings = longer
    return beginnings


@pytest.mark.parametrize("drafter", ["peer", "lookup"])
def test_answers_are_distributed_as_without_drafts(drafter: str) -> None:
    """By chi-square over all 125 answers; every number follows from the seeds."""
    options = EngineOptions(
        max_rows=64, num_blocks=400, speculate=2, acceptance="rejection", drafter="lookup"
    )
    target = as_loaded(tiny_model("qwen3_5"), "qwen3_5")
    peer = as_loaded(tiny_model("qwen3_5", seed=9), "qwen3_5")
    if drafter == "peer":
        parts = build_parts(
            target, options, lambda loaded, options, _forward: plan_peer(peer, loaded, options)
        )
    else:
        parts = build_parts(target, options)
    engine = Engine(parts)
    params = [replace(PARAMS, seed=seed) for seed in range(NUM_REQUESTS)]
    # after these, lookup has drafts for whatever pair is said first
    prompt = PROMPT if drafter == "peer" else [a for b in ALLOWED for c in ALLOWED for a in (b, c)]
    answers = [tuple(a.token_ids) for a in engine.generate([prompt] * NUM_REQUESTS, params)]
    stats = engine.stats().scheduler

    assert stats.drafted_tokens > stats.accepted_tokens > 0
    assert z_score(Counter(answers), outcome_probabilities(prompt)) < 4


def z_score(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """How many standard deviations the chi-square statistic lies above its mean."""
    total = sum(counts.values())
    common = {outcome: p * total for outcome, p in expected.items() if p * total >= 5}
    rare = total - sum(common.values())
    pairs = [(counts[outcome], mean) for outcome, mean in common.items()]
    if rare > 5:
        pairs.append((total - sum(counts[outcome] for outcome in common), rare))
    statistic = sum((count - mean) ** 2 / mean for count, mean in pairs)
    freedom = len(pairs) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))
