"""What is worked out for CUDA kernels before any runs: columns, frequencies, fused parts."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import qwen3, qwen3_5, qwen3_next
from mlx_lm.models.rope_utils import initialize_rope

from engine.cuda import delta_columns, fused_block
from engine.cuda.fused_attention import FusedAttention
from engine.cuda.fused_block import FusedBlock
from engine.cuda.rotary import inverse_frequencies

HEADS = (2, 6, 4, 8)  # key heads, value heads, key dim, value dim


def read_at(
    columns: mx.array, part: int, size: int, projected: np.ndarray, head: int
) -> np.ndarray:
    """What a kernel finds for value head ``head``: ``size`` numbers of part q, k, v, gate, b, a."""
    first, per_key_head, per_value_head = np.array(columns).reshape(6, 3)[part].tolist()
    members = HEADS[1] // HEADS[0]
    at = first + head // members * per_key_head + head % members * per_value_head
    return projected[..., at : at + size]


def check_parts(columns: mx.array, projected: np.ndarray, parts: list[np.ndarray]) -> None:
    """``parts`` are (tokens, heads, dim) of q, k (key heads) and v, gate, b, a (value heads)."""
    members = HEADS[1] // HEADS[0]
    for number, part in enumerate(parts):
        for head in range(HEADS[1]):
            wanted = part[:, head // members if number < 2 else head]
            found = read_at(columns, number, wanted.shape[-1], projected, head)
            assert np.array_equal(found, wanted), (number, head)


def test_columns_of_qwen3_next_are_where_mlx_lm_finds_them() -> None:
    key_heads, value_heads, key_dim, value_dim = HEADS
    module = qwen3_next.Qwen3NextGatedDeltaNet.__new__(qwen3_next.Qwen3NextGatedDeltaNet)
    nn.Module.__init__(module)
    module.num_k_heads, module.num_v_heads = key_heads, value_heads
    module.head_k_dim, module.head_v_dim = key_dim, value_dim
    qkvz = mx.arange(5 * 2 * (key_heads * key_dim + value_heads * value_dim)).reshape(1, 5, -1)
    ba = -mx.arange(1, 1 + 5 * 2 * value_heads).reshape(1, 5, -1)
    q, k, v, z, b, a = module.fix_query_key_value_ordering(qkvz, ba)
    parts = [np.array(part)[0] for part in (q, k, v, z, b[..., None], a[..., None])]
    projected = np.concatenate([np.array(qkvz)[0], np.array(ba)[0]], axis=-1)

    check_parts(delta_columns.interleaved(*HEADS), projected, parts)


@pytest.mark.parametrize("joined", [True, False])
def test_columns_of_qwen3_5_are_where_its_projections_put_them(joined) -> None:
    key_heads, value_heads, key_dim, value_dim = HEADS
    sizes = [key_heads * key_dim] * 2 + [value_heads * value_dim] * 2 + [value_heads] * 2
    random = np.random.default_rng(1)
    flat = [random.normal(size=(5, size)) for size in sizes]
    heads = [key_heads] * 2 + [value_heads] * 4
    parts = [part.reshape(5, count, -1) for part, count in zip(flat, heads, strict=True)]
    if joined:
        columns = delta_columns.side_by_side(*HEADS)
        check_parts(columns, np.concatenate(flat, axis=-1), parts)
        return
    columns = np.array(delta_columns.apart(*HEADS)).reshape(6, 3)
    check_parts(mx.array(columns.reshape(-1)), np.concatenate(flat[:3], axis=-1), parts[:3])
    for number in (3, 4, 5):
        alone = np.zeros((6, 3), np.int32)
        alone[0] = columns[number]
        for head in range(value_heads):
            wanted = parts[number][:, head]
            found = read_at(mx.array(alone.reshape(-1)), 0, wanted.shape[-1], flat[number], head)
            assert np.array_equal(found, wanted)


SCALED = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"type": "linear", "factor": 2.0},
        {"rope_type": "llama3", **SCALED},
        {"rope_type": "yarn", **SCALED, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    ],
    ids=str,
)
def test_turning_by_the_frequencies_is_what_the_module_does(config) -> None:
    rope = initialize_rope(16, 1e4, False, config, 256)
    frequencies = inverse_frequencies(rope)
    x = np.random.default_rng(2).normal(size=(3, 24)).astype(np.float32)

    angles = np.array([100, 101, 102])[:, None] * np.array(frequencies, np.float64)
    first, second = x[:, :8], x[:, 8:16]
    turned = [
        first * np.cos(angles) - second * np.sin(angles),
        second * np.cos(angles) + first * np.sin(angles),
        x[:, 16:],
    ]
    wanted = np.array(rope(mx.array(x)[None], offset=100))[0]
    np.testing.assert_allclose(np.concatenate(turned, axis=-1), wanted, atol=2e-5)


@pytest.mark.parametrize(
    "rope",
    [
        initialize_rope(16, 1e4, True, None, 256),
        initialize_rope(16, 1e4, False, {"rope_type": "yarn", **SCALED}, 256),
        initialize_rope(16, 1e4, False, {"rope_type": "dynamic", "factor": 2.0}, 256),
    ],
    ids=lambda rope: type(rope).__name__,
)
def test_an_embedding_that_does_more_than_turn_pairs_is_not_taken(rope) -> None:
    assert inverse_frequencies(rope) is None


DENSE = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}


def dense_model(**changes) -> qwen3.Model:
    model = qwen3.Model(qwen3.ModelArgs.from_dict(DENSE | changes))
    model.set_dtype(mx.bfloat16)
    return model


def test_fusing_a_model_changes_its_blocks_and_nothing_else() -> None:
    model, other = dense_model(), dense_model()
    names = [name for name, _ in nn.utils.tree_flatten(model.parameters())]

    assert fused_block.bind(model) == 2
    assert all(isinstance(block, FusedBlock) for block in model.layers)
    assert not any(isinstance(block, FusedBlock) for block in other.layers)
    assert [name for name, _ in nn.utils.tree_flatten(model.parameters())] == names
    projection = model.layers[0].mixer.projection
    assert (projection.key_offset, projection.value_offset) == (256, 384)
    assert fused_block.bind(model) == 0


def test_a_gated_attention_is_read_with_its_gates_between_the_queries() -> None:
    args = qwen3_5.TextModelArgs(
        hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64
    )
    module = qwen3_5.Attention(args)
    module.set_dtype(mx.bfloat16)
    fused = FusedAttention.of(module)

    assert isinstance(fused, FusedAttention)
    assert fused.projection.gated
    assert fused.projection.query_stride == 128
    assert (fused.projection.key_offset, fused.projection.value_offset) == (512, 640)
    assert fused.preparation.frequencies.shape == (8,)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_other_types_run_in_parts_and_the_cause_is_logged(dtype, caplog) -> None:
    model = dense_model()
    model.set_dtype(dtype)
    with caplog.at_level("INFO", "octavo"):
        assert fused_block.bind(model) == 0
    assert str(dtype).removeprefix("mlx.core.") in caplog.text


def test_quantized_projections_run_in_parts() -> None:
    model = dense_model()
    nn.quantize(model)
    assert fused_block.bind(model) == 0
