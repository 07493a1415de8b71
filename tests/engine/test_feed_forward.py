"""Feed-forward layers divided among lanes say what mlx-lm's say."""

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu import feed_forward, products
from engine.cpu.activation import silu, swiglu
from engine.cpu.lanes import Lanes


def make_layer(family: type[nn.Module]) -> nn.Module:
    if family.__module__.endswith("llama"):
        from mlx_lm.models.llama import ModelArgs

        sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "rms_norm_eps": 1e-6}
        args = ModelArgs("llama", 1024, intermediate_size=3584, vocab_size=8, **sizes)
        return family(args)
    return family(1024, 3584)


@pytest.mark.parametrize(("lanes", "tiles"), [(1, False), (1, True), (2, True), (3, True)])
@pytest.mark.parametrize("family", feed_forward.FAMILIES, ids=lambda family: family.__module__)
def test_every_family_says_the_same(monkeypatch, family, lanes, tiles) -> None:
    monkeypatch.setattr(products.blas, "set_threads", lambda count: None)
    layer = make_layer(family)
    inputs = [
        mx.random.normal((rows, width, 1024)) for rows, width in ((1, 1), (8, 1), (3, 5), (8, 33))
    ]
    expected = [layer(x) for x in inputs]
    assert feed_forward.quicken(layer) == 1
    products.quicken(layer, Lanes.make(lanes), tiles=tiles, panels=lanes == 2)
    feed_forward.leave_on_lanes(layer)
    assert layer.down_proj.skinny.is_cut(8) is (lanes == 2)
    for x, wanted in zip(inputs, expected, strict=True):
        assert layer(x).shape == wanted.shape
        assert mx.allclose(layer(x), wanted, rtol=1e-3, atol=1e-4)
    parts = layer.gate_proj.skinny.parts(inputs[1][:, 0])
    assert len(parts) == (lanes if tiles else 0)


def test_other_modules_and_instances_stay_as_they_are() -> None:
    family = feed_forward.FAMILIES[-1]
    one, other = make_layer(family), make_layer(family)
    feed_forward.quicken(one)
    assert type(other) is family
    assert feed_forward.quicken(nn.Linear(8, 8)) == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_activations_are_mlx_s(dtype) -> None:
    ends = mx.array([0.0, 1e30, -1e30, mx.inf])
    x = mx.concatenate([mx.linspace(-100, 100, 5000), ends]).astype(dtype)
    other = mx.random.normal(x.shape).astype(dtype)
    assert silu(x).dtype == swiglu(x, other).dtype == dtype
    assert mx.allclose(silu(x), nn.silu(x), rtol=1e-5, atol=1e-6)
    assert mx.allclose(swiglu(x, other), nn.silu(x) * other, rtol=1e-5, atol=1e-6)
    assert mx.isnan(silu(mx.array([mx.nan], dtype))).all()
