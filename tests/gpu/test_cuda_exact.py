"""Exact mode by kernels, in bfloat16: bitwise the same whatever runs beside, before or ahead."""

import mlx.core as mx
import pytest
from test_cuda_engine import first_prompts

from engine import Engine, SamplingParams
from engine.build import build
from engine.errors import ModelError

pytestmark = pytest.mark.gpu

OPTIONS = {"dtype": "bfloat16", "exact": True, "max_rows": 8, "num_blocks": 400, "check": True}
PARAMS = [
    SamplingParams(max_tokens=40, temperature=0.0, logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.8, seed=5, logprobs=2, ignore_eos=True),
]


def said(engine: Engine, prompts: list[str], params: SamplingParams) -> list[tuple]:
    return [
        (answer.token_ids, [entry.logprob for entry in answer.logprobs])
        for answer in engine.generate(prompts, params)
    ]


@pytest.fixture(scope="module")
def alone() -> list[list[tuple]]:
    """What each prompt says all by itself, without drafts and in small chunks."""
    engine = Engine.load("demo", prompt_tokens_per_round=16, async_scheduling=False, **OPTIONS)
    return [[said(engine, [prompt], params)[0] for prompt in first_prompts(8)] for params in PARAMS]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": False},
        {"speculate": 4},
        {"speculate": "auto"},
        {"speculate": 2, "drafter": "peer", "draft_model": "demo-draft"},
        {"speculate": 8, "drafter": "lookup"},
        {"prompt_tokens_per_round": 48, "prefix_cache": False},
    ],
    ids=str,
)
def test_answers_are_bitwise_those_of_each_prompt_alone(options, alone) -> None:
    engine = Engine.load("demo", **OPTIONS, **options)
    for params, wanted in zip(PARAMS, alone, strict=True):
        assert said(engine, first_prompts(8), params) == wanted
        assert said(engine, first_prompts(8), params) == wanted  # and again, from the prefix cache


def test_drafts_begun_before_their_round_is_known_are_as_good_as_others() -> None:
    counts = []
    for ahead in (False, True):
        engine = Engine.load("demo", speculate=3, async_scheduling=ahead, **OPTIONS)
        for params in PARAMS:
            said(engine, first_prompts(8), params)
        stats = engine.stats()
        assert stats.scheduler.failures == 0
        counts.append((stats.drafted_by_position, stats.accepted_by_position))
    print(counts)

    assert counts[0] == counts[1]


def test_what_no_kernel_takes_is_refused_with_the_cause() -> None:
    with pytest.raises(ModelError, match="exact=True cannot hold here: no kernel takes"):
        build("demo-draft", **OPTIONS)


def test_float32_is_not_exact_by_kernels() -> None:
    with pytest.raises(ValueError, match="exact=True with backend='cuda' needs bfloat16"):
        build("demo", **OPTIONS | {"dtype": "float32", "backend": "cuda"})
    assert mx.cuda.is_available()
