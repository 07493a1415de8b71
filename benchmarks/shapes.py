"""Models of real shapes with random weights, for speed alone: what they say means nothing."""

import dataclasses
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import qwen3, qwen3_5

from engine.loading import LoadedModel, load

DENSE_06B: dict[str, Any] = {  # Qwen3-0.6B
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
HYBRID_08B: dict[str, Any] = {  # Qwen3.5-0.8B: three GatedDeltaNet layers to one of attention
    "model_type": "qwen3_5_text",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 248320,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "rope_parameters": {"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
SHAPES = ("demo", "dense-0.6b", "hybrid-0.8b")


def build_model(shape: str, dtype: mx.Dtype, seed: int = 0) -> Any:
    """Return mlx-lm's model of ``shape``; the same weights for the same seed, up to ``dtype``."""
    if shape == "demo":
        return load("demo", dtype=str(dtype).removeprefix("mlx.core.")).model
    mx.random.seed(seed)
    if shape == "dense-0.6b":
        model = qwen3.Model(qwen3.ModelArgs.from_dict(DENSE_06B))
    elif shape == "hybrid-0.8b":
        config = {"model_type": "qwen3_5", "text_config": HYBRID_08B}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    else:
        raise ValueError(f"shape must be one of {', '.join(SHAPES)}, not {shape!r}")
    matrices = tree_map(lambda x: x.astype(dtype) if x.ndim > 1 else x, model.parameters())
    model.update(matrices)
    mx.eval(model.parameters())
    return model


def twin(model: Any) -> Any:
    """Return a second model over the same weight arrays, with classes of its own."""
    other = type(model)(model.args)
    other.update(model.parameters())
    return other


def as_loaded(model: Any, shape: str) -> LoadedModel:
    """Wrap a model made here as if it had been loaded; its tokenizer is the demo model's."""
    demo = load("demo")
    if shape == "demo":
        return dataclasses.replace(demo, model=model)
    text: Any = getattr(model, "language_model", model)
    return dataclasses.replace(
        demo,
        name=shape,
        model=model,
        model_type=model.model_type,
        vocab_size=text.model.embed_tokens.weight.shape[0],
        max_context=4096,
        eos_ids=frozenset(),
        tensors={},
    )
