"""Models of many families, so small that a forward pass takes a millisecond; weights are random."""

import copy
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.utils import _get_classes

from engine.loading import EMBEDDED, LoadedModel
from engine.ragged import refuse_if_not_ragged

VOCABULARY = 96

_BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_DELTA = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_MAMBA = {
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 8,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_limit": (0.001, 100.0),
    "time_step_rank": 4,
}
_LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "mistral": _BASE | {"sliding_window": None},
    "qwen2": _BASE,
    "qwen3": _BASE,
    "qwen3_5": {
        "text_config": _BASE
        | _DELTA
        | {
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "type": "default",
                "rope_theta": 100000,
                "partial_rotary_factor": 0.5,
            },
        }
    },
    "qwen3_5_moe": {"text_config": _BASE | _DELTA | _EXPERTS | {"model_type": "qwen3_5_moe_text"}},
    "qwen3_next": _BASE | _DELTA | _EXPERTS | {"partial_rotary_factor": 0.5},
    "gemma3_text": _BASE
    | {
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 8,
        "sliding_window": 20,
        "sliding_window_pattern": 2,
    },
    "gpt_oss": _BASE
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {"rope_type": "default"},
    },
    "gemma4_text": _BASE
    | {
        "num_hidden_layers": 6,
        "global_head_dim": 16,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "sliding_window": 20,
        "sliding_window_pattern": 2,
    },
    "iquestloopcoder": _BASE | {"loop_window_size": 20},
    "deepseek_v2": _BASE
    | _LATENT
    | {
        "topk_method": "greedy",
        "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
    },
    "deepseek_v3": _BASE | _LATENT,
    "deepseek_v32": _BASE | _LATENT | {"index_head_dim": 8, "index_n_heads": 4, "index_topk": 16},
    "mamba": _BASE | _MAMBA | {"use_bias": False},
    "mamba2": _BASE | _MAMBA,
    "lfm2": _BASE
    | {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"],
    },
    "granitemoehybrid": _BASE
    | {
        "embedding_multiplier": 2.0,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_proj_bias": False,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
        "mamba_conv_bias": True,
    },
    "jamba": _BASE
    | {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "nemotron_h": _BASE
    | {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "-", "*", "-"],
    },
    "recurrent_gemma": _BASE
    | {
        "num_hidden_layers": 3,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 20,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": _BASE
    | {
        "norm_eps": 1e-5,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "olmo_hybrid": _BASE | _DELTA | {"linear_allow_neg_eigval": True},
    "kimi_linear": _BASE
    | {
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
        "model_max_length": 512,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_experts_per_token": 2,
    },
    "falcon_h1": _BASE
    | {
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_n_groups": 2,
        "mamba_n_heads": 4,
    },
    "llama4": {
        "text_config": _BASE
        | {
            "model_type": "llama4_text",
            "attention_chunk_size": 16,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
}


def tiny_model(model_type: str, *, seed: int = 0, **changes: Any) -> Any:
    """Return a model of one family with random float32 weights large enough to tell tokens apart.

    ``changes`` are fields of its config.
    """
    mx.random.seed(seed)  # for what is drawn as the model is made
    config = copy.deepcopy(CONFIGS[model_type]) | {"model_type": model_type}
    config.get("text_config", config).update(changes)
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    key = mx.random.key(seed)

    def draw(path: str, weight: mx.array) -> mx.array:
        nonlocal key
        key, now = mx.random.split(key)
        if not mx.issubdtype(weight.dtype, mx.floating):
            return weight
        noise = mx.random.normal(weight.shape, key=now)
        if weight.ndim == 1 or "log" in path.lower():  # norms, decays, biases: near what they were
            return weight.astype(mx.float32) + 0.1 * noise
        return noise * (1.4 / weight.shape[-1] ** 0.5)

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())
    model.eval()
    return model


def as_loaded(model: Any, model_type: str, *, max_context: int = 512) -> LoadedModel:
    """Return ``model`` as loading it from a folder would, with the embedded models' tokenizer.

    Raises ModelError, like loading, for models that cannot run ragged rows.
    """
    from mlx_lm.utils import load_tokenizer

    refuse_if_not_ragged(model, model_type)
    return LoadedModel(
        name=f"tiny {model_type}",
        path=Path("in-memory"),
        model=model,
        tokenizer=load_tokenizer(EMBEDDED["demo-draft"]),
        config={},
        model_type=model_type,
        vocab_size=VOCABULARY,
        max_context=max_context,
        eos_ids=frozenset(),
        sampling_defaults={},
        tensors={},
        dtype="float32",
    )
