"""Users of one prefix whose blocks are read once say what they say when each reads its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from test_generation_parity import texts
from tiny_models import VOCABULARY, as_loaded, tiny_model

from engine.build import Parts, build, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.pages import Pages
from engine.sampling_params import SamplingParams
from scheduler.round import Round

PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=0)
OPTIONS = EngineOptions(max_rows=8, block_size=4, num_blocks=400, prompt_tokens_per_round=48)
SHARED = 120
USERS = 6


@cache
def tiny_parts(model_type: str, **changes: object) -> Parts:
    options = replace(OPTIONS, **changes)
    return build_parts(as_loaded(tiny_model(model_type), model_type), options)


@cache
def demo_parts(speculate: int) -> Parts:
    return build("demo", max_rows=8, max_context=1024, speculate=speculate or "off")


def tiny_prompts() -> list[list[int]]:
    """Users with some tokens of their own after a shared prefix, and a stranger."""
    words = [(7 * place * place + 3 * place) % (VOCABULARY - 1) + 1 for place in range(300)]
    users = [[*words[:SHARED], *words[200 + user :][: 1 + 2 * user]] for user in range(USERS)]
    return [*users, words[150:190]]


@contextmanager
def counting_gathers() -> Iterator[list[int]]:
    """Collect how many blocks each gathering took from the pages."""
    counts: list[int] = []
    gather = Pages.gather

    def count(pages: Pages, blocks: mx.array) -> tuple[mx.array, mx.array]:
        counts.append(blocks.size // pages.shape.num_kv_heads)
        return gather(pages, blocks)

    with patch.object(Pages, "gather", count):
        yield counts


class Told:
    """What an engine said to ``prompts``, the first alone before all at once, and how."""

    def __init__(self, parts: Parts, prompts: list[list[int]], *, groups: bool) -> None:
        config = replace(parts.scheduler_config, finds_groups=groups)
        engine = Engine(replace(parts, scheduler_config=config))
        list(engine.generate(prompts[:1], PARAMS))
        self.rounds: list[Round] = []
        plan = engine.scheduler.plan

        def record(now: float = 0.0) -> Round | None:
            round_ = plan(now)
            self.rounds += [round_] if round_ is not None else []
            return round_

        engine.scheduler.plan = record
        with counting_gathers() as counts:
            answers = list(engine.generate(prompts, PARAMS))
        self.gathered = sum(counts)
        self.tokens = [answer.token_ids for answer in answers]
        self.logprobs = np.array([[one.logprob for one in a.logprobs] for a in answers])
        stats = engine.stats().scheduler
        self.accepted = stats.accepted_tokens


def assert_alike(parts: Parts, prompts: list[list[int]]) -> tuple[Told, Told]:
    grouped, apart = (Told(parts, prompts, groups=groups) for groups in (True, False))
    assert {round_.groups for round_ in apart.rounds} == {()}
    assert any(len(group.seq_ids) > 1 for round_ in grouped.rounds for group in round_.groups)
    assert grouped.tokens == apart.tokens
    np.testing.assert_allclose(grouped.logprobs, apart.logprobs, atol=2e-4)
    return grouped, apart


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3", "jamba", "falcon_h1"])
def test_users_of_a_shared_prefix_say_the_same_and_read_less(model_type: str) -> None:
    grouped, apart = assert_alike(tiny_parts(model_type), tiny_prompts())

    assert grouped.gathered < apart.gathered / 2


@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma3_text"])
def test_layers_that_cannot_read_once_keep_to_what_they_do(model_type: str) -> None:
    assert_alike(tiny_parts(model_type), tiny_prompts())


def test_windows_with_drafts_say_the_same() -> None:
    parts = tiny_parts("qwen3", speculate=3, drafter="lookup")
    grouped, apart = assert_alike(parts, tiny_prompts())

    assert grouped.accepted == apart.accepted > 0
    assert grouped.gathered < 0.7 * apart.gathered


@pytest.mark.parametrize("speculate", [0, 3])
def test_the_embedded_hybrid_says_the_same(speculate: int) -> None:
    parts = demo_parts(speculate)
    tokens = Engine(parts).tokenizer.encode(texts())
    prompts = [[*tokens[:500], 100 + 7 * user, 200 + user] for user in range(7)]

    grouped, apart = assert_alike(parts, prompts)

    assert grouped.gathered < apart.gathered / 2
    assert (grouped.accepted > 0) is (speculate > 0)


def test_latent_attention_looks_for_no_groups_and_neither_does_exact_mode() -> None:
    assert tiny_parts("qwen3").scheduler_config.finds_groups
    assert not tiny_parts("deepseek_v3").scheduler_config.finds_groups
    exact = Told(tiny_parts("qwen3", exact=True), tiny_prompts(), groups=False)
    assert not tiny_parts("qwen3", exact=True).scheduler_config.finds_groups
    assert exact.tokens == Told(tiny_parts("qwen3"), tiny_prompts(), groups=True).tokens
