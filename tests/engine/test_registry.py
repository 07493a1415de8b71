"""What each layer of a model keeps, found by asking the model itself."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache
from tiny_models import tiny_model

from engine.errors import ModelError
from engine.pages import PageShape
from engine.registry import (
    ArraysSpec,
    AttentionSpec,
    DeltaSpec,
    GroupSpec,
    flatten,
    inspect_layers,
)
from engine.slots import SlotArray
from engine.store import bind_to_slots


def test_attention_layers_keep_their_heads() -> None:
    shape = PageShape(num_kv_heads=2, key_dim=8, value_dim=8, dtype=mx.float32)

    assert inspect_layers(tiny_model("llama")) == [AttentionSpec(shape)] * 2
    assert shape.bytes_per_position == 2 * (8 + 8) * 4


def test_sliding_windows_are_known_by_layer() -> None:
    windows = [spec.window_size for spec in inspect_layers(tiny_model("gemma3_text"))]

    assert windows == [20, None, 20, None]


def test_latent_attention_keeps_what_it_fetches() -> None:
    (spec, _) = inspect_layers(tiny_model("deepseek_v3"))

    assert spec == AttentionSpec(PageShape(1, key_dim=8, value_dim=4, dtype=mx.float32))


def test_gated_delta_layers_are_known_by_their_modules() -> None:
    model = tiny_model("qwen3_5")
    specs = inspect_layers(model)

    assert [type(spec) for spec in specs] == [DeltaSpec, AttentionSpec] * 2
    assert specs[0].module is model.layers[0].linear_attn
    layout = specs[0].layout(3, mx.float32)
    assert layout["state"] == SlotArray((4, 8, 8), mx.float32)
    assert layout["history"] == SlotArray((3 + 3, 64), mx.float32)
    assert layout["k"] == SlotArray((3, 2, 8), mx.float32)
    assert set(specs[0].layout(0, mx.float32)) == {"state", "history"}


def test_other_recurrent_layers_keep_the_arrays_they_filled() -> None:
    (first, *_) = inspect_layers(tiny_model("mamba2"))

    assert first == ArraysSpec((SlotArray((3, 64), mx.float32), SlotArray((4, 8, 8), mx.float32)))


def test_a_list_of_caches_is_a_group_of_layers() -> None:
    specs = inspect_layers(tiny_model("falcon_h1"))

    assert [type(spec) for spec in specs] == [GroupSpec, GroupSpec]
    assert [type(spec) for spec in flatten(specs)] == [ArraysSpec, AttentionSpec] * 2


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (lambda: RotatingKVCache(max_size=20, keep=4), "keeps its first 4 positions"),
        (lambda: ChunkedKVCache(16), "ChunkedKVCache, which cannot be paged"),
        (lambda: QuantizedKVCache(group_size=32), "QuantizedKVCache, which cannot be paged"),
    ],
)
def test_a_cache_that_cannot_be_paged_is_refused_by_name(cache: object, message: str) -> None:
    model = tiny_model("llama", head_dim=32)
    model.make_cache = lambda: [KVCache(), cache()]  # type: ignore[operator]

    with pytest.raises(ModelError, match=f"layer 1 keeps its .*{message}|{message}"):
        inspect_layers(model)


def test_a_model_that_ran_in_an_engine_before_is_known_again() -> None:
    model = tiny_model("qwen3_5")
    first = inspect_layers(model)
    for spec in first:
        if isinstance(spec, DeltaSpec):
            bind_to_slots(spec.module)

    assert inspect_layers(model) == first
