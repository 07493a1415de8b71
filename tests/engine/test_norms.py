"""Norms in few passes say what mlx-lm's say."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.gated_delta import normalize_qk
from mlx_lm.models.qwen3_next import Qwen3NextRMSNormGated

from engine.cpu import norms

SHAPES = [(1, 1, 64), (3, 5, 4, 128), (8, 1, 1024)]


def random(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32) -> mx.array:
    """Rows of very different lengths."""
    sizes = mx.power(10.0, mx.random.uniform(-6, 3, (*shape[:-1], 1)))
    return (sizes * mx.random.normal(shape)).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_norm_is_mlx_s(shape, dtype) -> None:
    norm = nn.RMSNorm(shape[-1], eps=1e-5)
    norm.weight = mx.random.normal((shape[-1],)).astype(dtype)
    x = random(shape, dtype)
    expected = norm(x)
    assert norms.quicken(norm) == 1
    assert norm(x).dtype == dtype
    assert mx.allclose(norm(x), expected, rtol=1e-5, atol=1e-6)
    assert mx.array_equal(norm(mx.zeros(shape, dtype)), mx.zeros(shape, dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_gated_norm_is_mlx_lm_s(shape, dtype) -> None:
    norm = Qwen3NextRMSNormGated(shape[-1], eps=1e-5)
    norm.weight = mx.random.normal((shape[-1],)).astype(dtype)
    x, gate = random(shape, dtype), random(shape, dtype)
    expected, ungated = norm(x, gate), norm(x)
    assert norms.quicken(norm) == 1
    assert norm(x, gate).dtype == dtype
    assert mx.allclose(norm(x, gate), expected, rtol=1e-5, atol=1e-6)
    assert mx.allclose(norm(x), ungated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_lengths_of_queries_and_keys_are_mlx_lm_s(shape) -> None:
    size = shape[-1]
    q, k = random(shape), random(shape)
    wanted_q, wanted_k = normalize_qk(q, k, inv_scale=size**-0.5, eps=1e-6)
    eps = 1e-6 / size
    assert mx.allclose(q * norms.inverse_rms(q, eps, 1 / size), wanted_q, rtol=1e-5, atol=1e-7)
    unit = k * norms.inverse_rms(k, eps, size**-0.5)
    assert mx.allclose(unit, wanted_k, rtol=1e-5, atol=1e-7)


def test_other_norms_and_other_instances_stay_as_they_are() -> None:
    one, other = nn.RMSNorm(8), nn.RMSNorm(8)
    norms.quicken(one)
    assert type(other) is nn.RMSNorm
    assert norms.quicken(nn.LayerNorm(8)) == 0
