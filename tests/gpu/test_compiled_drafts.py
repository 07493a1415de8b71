"""Chains of drafts and a head's windows as one graph: what they are step by step, bit for bit."""

import json

import mlx.core as mx
import numpy as np
import pytest

from engine import Engine, SamplingParams
from engine.build import build_parts
from engine.cuda.attention_layer import CudaAttentionLayer
from engine.cuda.compiled_chain import CompiledChain
from engine.cuda.compiled_window import CompiledWindow
from engine.loading import DEMO_PROMPTS, load
from engine.options import EngineOptions

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    return load("demo")


def make_engine(model) -> Engine:
    options = EngineOptions(max_rows=8, max_context=512, backend="cuda", speculate=3)
    return Engine(build_parts(model, options))


def prompts(count: int) -> list[str]:
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]
    return [line["prompt"][: 200 + 40 * n] for n, line in enumerate(lines) if "prompt" in line][
        :count
    ]


def said_and_kept(engine: Engine, texts: list[str]):
    """Answers, drafts accepted of each, and the pages of the head and its pending states."""
    answers = list(engine.generate(texts, GREEDY))
    drafter = engine.parts.executor.drafter
    drafter.catch_up()
    mx.synchronize()
    kept = [*drafter.layer.pages.arrays, drafter.pending.pools["hidden"]]
    return (
        [answer.token_ids for answer in answers],
        [(answer.usage.drafted_tokens, answer.usage.accepted_tokens) for answer in answers],
        # of drafts that nobody judged any more spare blocks differ, and the last round's places
        [np.array(array.astype(mx.float32)) for array in kept],
    )


@pytest.mark.parametrize("count", [1, 5])
def test_graphs_draft_what_steps_draft(model, monkeypatch, count) -> None:
    calls = {"chain": 0, "window": 0}
    for name, kind in (("chain", CompiledChain), ("window", CompiledWindow)):

        def counted(self, *arguments, name=name, real=kind.__call__):
            calls[name] += 1
            return real(self, *arguments)

        monkeypatch.setattr(kind, "__call__", counted)
    ours = said_and_kept(make_engine(model), prompts(count))
    assert calls["chain"] > 10
    assert calls["window"] > 10
    monkeypatch.setattr(CudaAttentionLayer, "compile_chain", lambda layer, run: None)
    monkeypatch.setattr(CudaAttentionLayer, "compile_window", lambda layer, run: None)
    theirs = said_and_kept(make_engine(model), prompts(count))
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]
    for mine, other in zip(ours[2], theirs[2], strict=True):
        same = (mine == other).mean()
        assert same > 0.999, same


def test_a_round_that_failed_leaves_nothing_to_the_graphs(model, monkeypatch) -> None:
    texts = prompts(4)
    undisturbed = [answer.token_ids for answer in make_engine(model).generate(texts, GREEDY)]
    engine = make_engine(model)
    real, rounds = CompiledChain.__call__, 0

    def failing(self, *arguments):
        nonlocal rounds
        rounds += 1
        found = real(self, *arguments)
        if rounds == 4:
            raise RuntimeError("the fourth chain")
        return found

    monkeypatch.setattr(CompiledChain, "__call__", failing)
    assert [answer.token_ids for answer in engine.generate(texts, GREEDY)] == undisturbed
    assert rounds > 8
