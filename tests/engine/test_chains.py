"""Which blocks multiply for the next one, and who may run chains, without a device to run them."""

import itertools
import weakref
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3

from engine.cuda import chains, fused_block, fusing
from engine.cuda.chains import ChainedBlock, ChainRun, Workspace
from engine.cuda.product import Norm

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rope_theta": 10_000,
    "tie_word_embeddings": True,
}


def rms(x: mx.array, norm: Norm) -> mx.array:
    return mx.fast.rms_norm(x, norm.weight, norm.epsilon[0].item())


def multiply(x: mx.array, weights: Any, *, norm: Norm) -> mx.array:
    return rms(x, norm) @ mx.concatenate(list(weights)).T


class Owner:
    pass


class Cache:
    """What a block asks of its cache: the chain, and the heads' attention."""

    def __init__(self, chain: ChainRun) -> None:
        self.chain = chain

    def attend_projected(self, projected: mx.array, *_: Any) -> mx.array:
        return mx.tanh(projected[..., :256])


@pytest.fixture(autouse=True)
def _nobody_owns_chains() -> None:
    chains._owners.clear()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> qwen3.Model:
    monkeypatch.setattr(chains, "count_multiprocessors", lambda: 132)
    mx.random.seed(3)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model


def test_each_block_multiplies_for_the_one_after_it(model) -> None:
    assert fused_block.bind(model) == 3
    blocks = model.layers
    for block, after in itertools.pairwise(blocks):
        following = block.chained.following
        assert following.norm is after.norms[0]
        assert [id(one) for one in following.weights] == [
            id(getattr(after.self_attn, f"{name}_proj").weight) for name in "qkv"
        ]
    assert blocks[-1].chained.following is None
    assert len({id(block.chained.workspace) for block in blocks}) == 1


def test_exact_models_and_other_devices_have_no_chains(model, monkeypatch) -> None:
    fused_block.bind(model, any_rows=True)
    assert all(block.chained is None for block in model.layers)

    other = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    other.set_dtype(mx.bfloat16)
    monkeypatch.setattr(chains, "count_multiprocessors", lambda: 0)
    fused_block.bind(other)
    assert all(block.chained is None for block in other.layers)


def test_a_model_in_chains_is_the_model(model, monkeypatch) -> None:
    ran = []

    def run(
        self: Workspace, block: ChainedBlock, x: mx.array, residual: mx.array, after: mx.array
    ) -> tuple[mx.array, mx.array | None]:
        ran.append((block, after))
        h = residual + x @ block.mixed.T
        normed = rms(h, block.norm)
        gate, up = normed @ block.gate.T, normed @ block.up.T
        h = h + (gate * mx.sigmoid(gate) * up) @ block.down.T
        if block.following is None:
            return h, None
        return h, multiply(h, block.following.weights, norm=block.following.norm)

    fused_block.bind(model)
    monkeypatch.setattr(Workspace, "run", run)
    monkeypatch.setattr(fusing, "multiply", multiply)
    owner, done = Owner(), mx.zeros((1,), mx.bfloat16)
    chain = ChainRun(owner, done)
    x = mx.random.normal((5, 1, 256)).astype(mx.bfloat16)

    h = x
    for block in model.layers:
        h = block(h, None, Cache(chain))

    wanted = x
    for block in model.layers:
        projected = multiply(wanted, block.mixer.weights, norm=block.norms[0])
        mixed = mx.tanh(projected[..., :256])
        wanted, _ = run(None, block.chained, mixed, wanted, done)
    assert mx.array_equal(h, wanted)
    assert [block for block, _ in ran[:3]] == [block.chained for block in model.layers]
    assert ran[0][1] is done
    assert chain.done.item() == h.reshape(-1)[0].item()


def test_projections_are_of_the_array_they_came_with_alone(monkeypatch) -> None:
    out, projected = mx.ones((2, 1, 4)), mx.zeros((2, 1, 8))
    chain = ChainRun(Owner(), mx.zeros((1,)))
    assert chain.projected(out) is None
    monkeypatch.setattr(Workspace, "run", lambda *_: (out, projected))
    block = ChainedBlock(*[None] * 5, following=None, workspace=object.__new__(Workspace))
    assert chain.follow(block, out, out) is out
    assert chain.projected(out) is projected
    assert chain.projected(out + 0) is None


def test_one_owner_has_the_chains_while_it_lives(monkeypatch) -> None:
    first, second = Owner(), Owner()
    assert chains.claim(first)
    assert not chains.claim(second)
    assert chains.claim(first)
    assert ChainRun(first, mx.zeros((1,))).may_run
    assert not ChainRun(second, mx.zeros((1,))).may_run
    first.itself = first  # as engines hold themselves
    del first
    assert any(chains.claim(second) for _ in range(2))  # not every time is looked for rubbish

    monkeypatch.setenv(chains.MULTI_PROCESS, "/tmp/mps")
    assert not chains.claim(second)


def test_rubbish_is_collected_more_and_more_seldom_for_who_is_refused_chains(monkeypatch) -> None:
    holder, refused = Owner(), Owner()
    collections: list[int] = []
    monkeypatch.setattr(chains, "_owners", weakref.WeakSet([holder]))
    monkeypatch.setattr(chains.gc, "collect", lambda: collections.append(1))
    for _ in range(20):  # as every graph that is traced asks
        assert not chains.claim(refused)
    assert len(collections) == 5
    monkeypatch.setattr(chains, "_owners", weakref.WeakSet())
    assert chains.claim(refused)


def test_what_chains_cannot_take_is_said(model, monkeypatch) -> None:
    fused_block.bind(model)
    blocks = [block.chained for block in model.layers]
    assert chains.why_not(blocks) is None
    assert blocks[0].products == [(2, 4), (8, 4), (2, 8), (4, 4)]
    monkeypatch.setattr(chains, "count_multiprocessors", lambda: 1)
    assert chains.why_not(blocks) == "1024 columns"
    monkeypatch.setattr(chains, "count_multiprocessors", lambda: 0)
    assert "compute capability" in chains.why_not(blocks)
