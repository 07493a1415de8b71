"""4B shapes with random bfloat16 weights, made where they stay, and what a step has to move."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import qwen3, qwen3_5

from .shapes import DENSE_06B, HYBRID_08B

DENSE_4B = DENSE_06B | {  # Qwen3-4B
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
}
HYBRID_4B = HYBRID_08B | {  # Qwen3.5-4B
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "intermediate_size": 9216,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
    "vocab_size": 151936,
}
BYTES_PER_SECOND = 4.3e12


def build_model(kind: str) -> Any:
    """Return a model of random bfloat16 weights, the same each time, made where they stay."""
    mx.random.seed(0)
    if kind == "dense":
        model: Any = qwen3.Model(qwen3.ModelArgs.from_dict(DENSE_4B))
    else:
        config = {"model_type": "qwen3_5", "text_config": HYBRID_4B}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))

    def fill(path: str, old: mx.array) -> mx.array:
        if path.endswith("A_log"):
            return mx.zeros(old.shape)
        if old.ndim == 1:
            return mx.ones(old.shape, mx.bfloat16)
        return mx.random.normal(old.shape, mx.bfloat16) * 0.02

    model.update(tree_map_with_path(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


def bound_ms(kind: str, model: Any, rows: int, context: int, width: int) -> float:
    """Milliseconds to move what a step has to."""
    moved = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    config = DENSE_4B if kind == "dense" else HYBRID_4B
    layers = config["num_hidden_layers"]
    paged = layers if kind == "dense" else layers // config["full_attention_interval"]
    per_position = 2 * config["num_key_value_heads"] * config["head_dim"] * 2
    moved += paged * rows * (context + width) * per_position
    if kind == "hybrid":
        state = config["linear_num_value_heads"] * 128 * 128 * 4
        moved += 2 * (layers - paged) * rows * state
    return moved / BYTES_PER_SECOND * 1e3
