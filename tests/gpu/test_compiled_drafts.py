"""Chains of drafts and a head's windows as one graph: what they are step by step, bit for bit."""

import json

import mlx.core as mx
import numpy as np
import pytest

from engine import Engine, SamplingParams
from engine.build import build_parts
from engine.cuda import accepting, gathering
from engine.cuda.attention_layer import CudaAttentionLayer
from engine.cuda.compiled_chain import CompiledChain
from engine.cuda.compiled_window import CompiledWindow
from engine.cuda.fused_head import FusedHead
from engine.drafting import offer
from engine.loading import DEMO_PROMPTS, load
from engine.options import EngineOptions

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    return load("demo")


def make_engine(model) -> Engine:
    options = EngineOptions(max_rows=12, max_context=512, backend="cuda", speculate=3)
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


@pytest.mark.parametrize("count", [1, 5, 9])
def test_graphs_draft_what_steps_draft(model, monkeypatch, count) -> None:
    calls = {"chain": 0, "window": 0, "begin": 0}
    for name, kind, method in (
        ("chain", CompiledChain, "__call__"),
        ("window", CompiledWindow, "__call__"),
        ("begin", CompiledChain, "begin"),
    ):
        real = getattr(kind, method)

        def counted(self, *arguments, name=name, real=real):
            calls[name] += 1
            return real(self, *arguments)

        monkeypatch.setattr(kind, method, counted)
    ours = said_and_kept(make_engine(model), prompts(count))
    assert calls["chain"] > 10
    assert calls["window"] > 10
    assert calls["begin"] > 0
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


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (3, 5), (64, 4)])
def test_one_launch_accepts_as_operations_do(rows, width) -> None:
    numbers = np.random.default_rng(rows)
    windows = numbers.integers(0, 3, (rows, width)).astype(np.int32)
    picked = numbers.integers(0, 3, (rows, width)).astype(np.uint32)
    hidden = mx.array(numbers.normal(size=(rows, width, 256)), mx.float32).astype(mx.bfloat16)
    starts = numbers.integers(0, 900, rows).astype(np.int32)
    accepted, token = offer.accept(mx.array(picked), mx.array(windows[:, 1:]))
    following, last, places = accepting.accept(
        mx.array(picked.reshape(-1)), mx.array(windows), hidden, mx.array(starts)
    )
    assert following.tolist() == token.tolist()
    assert mx.array_equal(last, hidden[mx.arange(rows), accepted])
    steps = np.arange(width - 1)[:, None]
    assert places.tolist() == (starts + np.array(accepted) + steps).tolist()
    joined = accepting.join([following, mx.array(picked[:, 0]), following])
    assert joined.tolist() == np.stack([token, picked[:, 0], token], 1).tolist()


def test_a_head_enters_by_halves_as_it_does_whole(model) -> None:
    head = make_engine(model).parts.executor.drafter.head
    assert type(head) is FusedHead
    whole = mx.concatenate([head.left, head.right], axis=1)
    for rows, width in ((1, 1), (20, 3), (10, 30)):
        shape = (rows, width, head.norm.weight.shape[0])
        both = [mx.random.normal(shape, mx.bfloat16, key=mx.random.key(n)) for n in (0, 1)]
        found = head.enter(*both).astype(mx.float32)
        normed = [head.pre_fc_norm_embedding(both[0]), head.pre_fc_norm_hidden(both[1])]
        expected = (mx.concatenate(normed, axis=-1) @ whole.T).astype(mx.float32)
        assert mx.linalg.norm(found - expected) < 0.01 * mx.linalg.norm(expected)


@pytest.mark.parametrize("count", [1, 9, gathering.MOST])
def test_one_launch_gathers_from_many_arrays(count) -> None:
    numbers = np.random.default_rng(count)
    sizes = numbers.integers(1, 6, count).tolist()
    hidden = [
        mx.random.normal((size, 1, 256), mx.bfloat16, key=mx.random.key(size)) for size in sizes
    ]
    tokens = [mx.array(numbers.integers(0, 99, (size, 1)), mx.int32) for size in sizes]
    assert gathering.takes(tokens, hidden)
    arrays = numbers.integers(0, count, (3, 70)).astype(np.int32)
    rows = (numbers.integers(0, 99, arrays.shape) % np.array(sizes)[arrays]).astype(np.int32)
    found = gathering.gather(tokens, hidden, arrays, rows)
    for line in range(3):
        for place in range(70):
            array, row = int(arrays[line, place]), int(rows[line, place])
            assert found[0][line, place].item() == tokens[array][row, 0].item()
            assert mx.array_equal(found[1][line, place], hidden[array][row, 0]).item()
