"""A whole engine on the CUDA backend: it says what the portable one says, and does not grow."""

import json

import mlx.core as mx
import numpy as np
import pytest
from test_generation_parity import texts
from test_group_parity import Told

from engine import Engine, SamplingParams
from engine.build import build
from engine.loading import DEMO_PROMPTS

pytestmark = pytest.mark.gpu


def first_prompts(count: int) -> list[str]:
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]
    return [line["prompt"][:400] for line in lines if "prompt" in line][:count]


def load(backend: str, **options) -> Engine:
    return Engine.load("demo", max_rows=8, num_blocks=400, backend=backend, **options)


@pytest.mark.parametrize("speculate", ["off", 3])
def test_answers_agree_with_the_portable_backend_to_rounding(speculate) -> None:
    params = SamplingParams(max_tokens=40, logprobs=4)
    options = {"dtype": "float32", "speculate": speculate}
    answers = {
        backend: list(load(backend, **options).generate(first_prompts(8), params))
        for backend in ("portable", "cuda")
    }
    differences = []
    for ours, reference in zip(answers["cuda"], answers["portable"], strict=True):
        for mine, theirs in zip(ours.logprobs, reference.logprobs, strict=True):
            differences.append(abs(mine.logprob - theirs.logprob))
            if mine.token_id != theirs.token_id:  # a near-tie that rounding decided
                assert abs(theirs.top[0][1] - theirs.top[1][1]) < 0.01, "the state is wrong"
                break
    print(json.dumps({"largest": max(differences), "mean": float(np.mean(differences))}))
    assert max(differences) < 0.02


def test_drafts_do_not_change_what_is_said_in_float32() -> None:
    params = SamplingParams(max_tokens=48, temperature=0.8, seed=11)
    said = [
        [
            answer.token_ids
            for answer in load("cuda", dtype="float32", speculate=depth).generate(
                first_prompts(8), params
            )
        ]
        for depth in ("off", 4)
    ]
    same = sum(a == b for a, b in zip(*said, strict=True))
    assert same >= 7  # products of other sizes round otherwise, and may decide a near-tie


def test_long_prompts_in_bfloat16_agree_with_the_portable_backend_to_rounding() -> None:
    params = SamplingParams(max_tokens=1, logprobs=2)
    said = {
        backend: list(load(backend, dtype="bfloat16").generate(first_prompts(8), params))
        for backend in ("portable", "cuda")
    }
    differences = [
        abs(ours.logprobs[0].logprob - reference.logprobs[0].logprob)
        for ours, reference in zip(said["cuda"], said["portable"], strict=True)
        if ours.token_ids == reference.token_ids
    ]
    assert len(differences) >= 7  # the eighth may be a near-tie
    assert max(differences) < 0.1, differences


def test_a_prefix_read_once_changes_what_is_said_by_rounding_alone() -> None:
    parts = build("demo", max_rows=8, max_context=1024, backend="cuda", dtype="bfloat16")
    tokens = Engine(parts).tokenizer.encode(texts())
    prompts = [[*tokens[:500], 100 + 7 * user, 200 + user] for user in range(7)]
    grouped, apart = (Told(parts, prompts, groups=groups) for groups in (True, False))
    assert any(len(group.seq_ids) > 1 for round_ in grouped.rounds for group in round_.groups)
    assert not any(round_.groups for round_ in apart.rounds)
    for number, (ours, theirs) in enumerate(zip(grouped.tokens, apart.tokens, strict=True)):
        pairs = zip(ours, theirs, strict=True)
        agreed = next((n for n, (mine, other) in enumerate(pairs) if mine != other), len(ours))
        both = [told.logprobs[number, : agreed + 1] for told in (grouped, apart)]
        np.testing.assert_allclose(*both, atol=0.1)


def test_memory_stays_flat_over_ten_thousand_steps() -> None:
    engine = load("cuda", dtype="bfloat16")
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    prompts = first_prompts(8)
    held = []
    steps = 0
    while steps < 10_000:
        for prompt in prompts:
            engine.submit(prompt, params)
        while engine.has_work:
            engine.step()
            steps += 1
        held.append(mx.get_active_memory())
    assert max(held[1:]) - held[1] < 1 << 20, held


def test_inspection_names_the_backend_and_each_layer() -> None:
    described = load("auto").describe()
    assert described["backend"] == "cuda"
    kinds = set(described["layers"])
    assert kinds == {
        "gated delta rule by CUDA kernels, write on accept",
        "paged attention by CUDA kernels",
    }
