"""Layers that multiply the same input say what each would say alone."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import qwen3, qwen3_5

from engine.cpu import products, siblings
from engine.cpu.divided_panels import DividedPanels
from engine.cpu.lanes import Lanes
from engine.cpu.products import SkinnyLinear, quicken
from engine.drafting.mtp import MTPHead


@pytest.fixture(autouse=True)
def blas_keeps_its_threads(monkeypatch) -> None:
    monkeypatch.setattr(products.blas, "set_threads", lambda _count: None)


@pytest.fixture
def products_made(monkeypatch) -> list[int]:
    """Outputs of each product by panels."""
    made: list[int] = []
    product = DividedPanels.product

    def counted(self, x, lanes):
        made.append(32 * self.panels.count)
        return product(self, x, lanes)

    monkeypatch.setattr(DividedPanels, "product", counted)
    return made


def attention(hidden: int = 512) -> qwen3.Attention:
    sizes = {"hidden_size": hidden, "num_attention_heads": 4, "num_key_value_heads": 2}
    return qwen3.Attention(qwen3.ModelArgs.from_dict(ARGS | sizes))


ARGS = {
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "head_dim": 128,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [1, 8, 33, 100])
def test_siblings_say_what_each_says_alone(products_made, rows, count) -> None:
    module = attention()
    x = mx.random.normal((rows, 1, 512))
    layers = [module.q_proj, module.k_proj, module.v_proj]
    alone = [layer(x) for layer in layers]
    quicken(module, Lanes.make(count), tiles=True, panels=True)
    products.join_siblings(module)
    products.copy_panels(module)
    for _ in range(2):
        for layer, expected in zip(layers, alone, strict=True):
            assert mx.allclose(layer(x), expected, rtol=1e-3, atol=1e-4)
    assert products_made == ([1024, 1024] if rows <= 64 else [])


def test_each_may_be_asked_with_another_input_and_out_of_turn(products_made) -> None:
    module = attention()
    one, other = mx.random.normal((2, 1, 8, 512))
    q, k = module.q_proj, module.k_proj
    expected = [q(one), k(other), q(one), q(one), k(one)]
    quicken(module, Lanes.make(1), tiles=True, panels=True)
    products.join_siblings(module)
    said = [q(one), k(other), q(one), q(one), k(one)]
    for product, wanted in zip(said, expected, strict=True):
        assert mx.allclose(product, wanted, rtol=1e-3, atol=1e-4)
    assert len(products_made) == 4  # only the last is of a product that was there


def test_projections_of_a_gated_delta_layer_are_siblings_though_two_are_no_whole_panel() -> None:
    args = qwen3_5.TextModelArgs.from_dict(
        {
            "model_type": "qwen3_5_text",
            "hidden_size": 512,
            "linear_num_value_heads": 16,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
        }
    )
    module = qwen3_5.GatedDeltaNet(args)
    x = mx.random.normal((3, 1, 512))
    (layers,) = siblings.find(module)
    expected = [layer(x) for layer in layers]
    assert quicken(module, Lanes.make(2), tiles=True, panels=True) == 5
    products.join_siblings(module)
    for layer, wanted in zip(layers, expected, strict=True):
        assert layer.skinny.has_siblings
        assert mx.allclose(layer(x), wanted, rtol=1e-3, atol=1e-4)


def test_no_weight_is_copied_twice() -> None:
    module = attention()
    quicken(module, Lanes.make(2), tiles=True, panels=True)
    products.join_siblings(module)
    copies = module.q_proj.skinny.copies
    products.join_siblings(module)
    assert module.q_proj.skinny.copies[0] is copies[0], "another engine has the model already"
    mx.eval(module.parameters())
    before = mx.get_active_memory()
    products.copy_panels(module)
    weights = [layer.weight for layer in module.children().values() if isinstance(layer, nn.Linear)]
    assert mx.get_active_memory() - before == sum(weight.nbytes for weight in weights)


def test_small_weights_and_other_types_stay_alone() -> None:
    for module in (attention(32), attention()):
        if module.q_proj.weight.shape[1] == 512:
            module.k_proj.weight = module.k_proj.weight.astype(mx.bfloat16)
        quicken(module, Lanes.make(1), tiles=True, panels=True)
        products.join_siblings(module)
        assert type(module.q_proj) is SkinnyLinear
        assert not module.q_proj.skinny.has_siblings


def test_a_head_that_follows_multiplies_for_no_queries(products_made) -> None:
    """Of an MTP head's layer only keys and values are evaluated in most rounds."""
    args = qwen3.ModelArgs.from_dict(
        ARGS | {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    )
    args.full_attention_interval = 4
    head = MTPHead(args, lambda args, _: qwen3.TransformerBlock(args))
    module, x = head.layers[0].self_attn, mx.random.normal((4, 1, 512))
    wanted = module.k_proj(x), module.v_proj(x)
    quicken(head, Lanes.make(1), tiles=True, panels=True)
    products.join_siblings(head)
    products.copy_panels(head)
    _, keys, values = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    assert mx.allclose(keys, wanted[0], atol=1e-4)
    assert mx.allclose(values, wanted[1], atol=1e-4)
    assert not module.q_proj.skinny.has_siblings
    assert module.k_proj.skinny.has_siblings
    assert 2 * 2 * 128 in products_made
