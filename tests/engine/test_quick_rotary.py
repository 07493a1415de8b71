"""Rotary embedding in few operations says what MLX's says."""

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu import rotary
from engine.cpu.rotary import QuickRoPE


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(("dims", "scale"), [(32, 1.0), (64, 1.0), (16, 0.25)])
def test_rows_at_places_of_their_own_are_rotated_as_by_mlx(width, dims, scale) -> None:
    model = nn.Sequential(nn.RoPE(dims, base=1e6, scale=scale), nn.RoPE(dims, traditional=True))
    plain = nn.RoPE(dims, base=1e6, scale=scale)
    assert rotary.quicken(model) == 2
    quick, traditional = model.layers
    assert type(quick) is QuickRoPE
    for offsets in ([0, 3, 4000], [7, 1, 2]):
        offset = mx.array(offsets)
        for heads in (2, 8):
            x = mx.random.normal((3, heads, width, 64))
            assert mx.allclose(quick(x, offset=offset), plain(x, offset=offset), atol=1e-5)
            for other in (5, mx.array(5)):
                assert mx.array_equal(quick(x, offset=other), plain(x, offset=other))
            wanted = nn.RoPE(dims, traditional=True)(x, offset=offset)
            assert mx.array_equal(traditional(x, offset=offset), wanted)


def test_tables_of_a_batch_are_made_once_for_all_layers(monkeypatch) -> None:
    made: list[mx.array] = []
    sines = mx.sin
    monkeypatch.setattr(rotary.mx, "sin", lambda x: made.append(x) or sines(x))
    layers = [QuickRoPE(32) for _ in range(3)]
    x = mx.random.normal((2, 4, 1, 32))
    for offset in (mx.array([3, 4]), mx.array([4, 5])):
        for layer in layers:
            layer(x, offset=offset)
    assert len(made) == 2
    layers[0](mx.random.normal((2, 4, 3, 32)), offset=offset)
    assert len(made) == 3, "of wider windows there are more"


def test_other_types_are_left_to_mlx() -> None:
    x, offset = mx.random.normal((2, 4, 1, 32)).astype(mx.bfloat16), mx.array([3, 4])
    assert mx.array_equal(QuickRoPE(32)(x, offset=offset), nn.RoPE(32)(x, offset=offset))
