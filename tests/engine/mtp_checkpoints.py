"""Checkpoints with an MTP head, made for tests: published apart, raw, converted, quantized."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_5_moe, qwen3_next

Tensors = dict[str, mx.array]

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
QUANTIZATION = {"group_size": 32, "bits": 4, "mode": "affine"}

TEXT_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": True,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5": {"text_config": TEXT_CONFIG | {"rope_parameters": ROPE}},
    "qwen3_5_moe": {"text_config": TEXT_CONFIG | EXPERTS | {"rope_parameters": ROPE}},
    "qwen3_next": TEXT_CONFIG | EXPERTS,
}


def is_centred_norm(name: str) -> bool:
    """Whether a raw checkpoint stores this weight less one."""
    return name.endswith(("norm.weight", "norm_embedding.weight", "norm_hidden.weight")) and (
        "linear_attn" not in name
    )


def publish(bundled: Path, folder: Path) -> Path:
    """Write the MTP head in ``bundled``, a raw checkpoint, as one published apart."""
    weights: Tensors = {}
    for file in sorted(bundled.glob("*.safetensors")):
        for name, weight in mx.load(str(file)).items():
            if name.startswith("mtp."):
                weights[name[4:]] = weight + 1.0 if is_centred_norm(name) else weight
    config = json.loads((bundled / "config.json").read_text())
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": config["model_type"] + "_mtp",
                "text_config": config["text_config"],
                "tie_word_embeddings": True,
            }
        )
    )
    return folder


def make_tiny(family: str, form: str, folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Write a tiny random model of ``family`` with an MTP head; return the head's weights.

    ``form`` is raw, converted or quantized. The weights returned are numpy arrays named as the raw
    ones are, one expert at a time, with norms as they are multiplied.
    """
    mx.random.seed(7)
    config = {"model_type": family, **FAMILIES[family]}
    if family == "qwen3_next":
        config["model_type"] = family
        args: Any = qwen3_next.ModelArgs.from_dict(config)
        model: nn.Module = qwen3_next.Model(args)
        layer: nn.Module = qwen3_next.Qwen3NextDecoderLayer(args, 1)
    else:
        module = qwen3_5_moe if family == "qwen3_5_moe" else qwen3_5
        model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
        args = qwen3_5.TextModelArgs.from_dict(json.loads(json.dumps(config["text_config"])))
        layer = qwen3_5.DecoderLayer(args, 1)
    width = args.hidden_size
    head: Tensors = {f"layers.0.{name}": w for name, w in tree_flatten(layer.parameters())}
    head["fc.weight"] = 0.1 * mx.random.normal((width, 2 * width))
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        head[f"{name}.weight"] = mx.ones(width)
    for name in head:
        if is_centred_norm(name):
            head[name] = head[name] + 0.1 * mx.random.normal(head[name].shape)
    body: Tensors = dict(tree_flatten(model.parameters()))
    used = head
    if form == "quantized":
        nn.quantize(model, **QUANTIZATION)
        body = dict(tree_flatten(model.parameters()))
        head, used = quantized(head)
        config["quantization"] = QUANTIZATION
    if form == "raw":
        body, head = as_raw(body, family), as_raw(head, family)
    folder.mkdir()
    for file in TOKENIZER:
        shutil.copy(tokenizer / file, folder)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(
        str(folder / "model.safetensors"), body | {f"mtp.{name}": w for name, w in head.items()}
    )
    return {name: np.array(weight) for name, weight in one_by_one(used).items()}


def quantized(weights: Mapping[str, mx.array]) -> tuple[Tensors, Tensors]:
    """Return ``weights`` with their matrices packed, and the numbers that those stand for."""
    packed: Tensors = {}
    meant: Tensors = {}
    for name, weight in weights.items():
        packed[name] = meant[name] = weight
        if weight.ndim >= 2:
            stem = name.removesuffix(".weight")
            parts = mx.quantize(weight, **QUANTIZATION)
            packed[name], packed[f"{stem}.scales"], packed[f"{stem}.biases"] = parts
            meant[name] = mx.dequantize(*parts, **QUANTIZATION)
    return packed, meant


def one_by_one(weights: Mapping[str, mx.array]) -> Tensors:
    """Name every expert's matrix on its own, as raw qwen3_next checkpoints do."""
    named: Tensors = {}
    for name, weight in weights.items():
        if "switch_mlp" in name:
            for number in range(weight.shape[0]):
                named[name.replace("switch_mlp", f"experts.{number}")] = weight[number]
        else:
            named[name] = weight
    return named


def as_raw(weights: Mapping[str, mx.array], family: str) -> Tensors:
    """Lay ``weights`` out as a raw checkpoint of ``family`` does; the inverse of loading it."""
    raw: Tensors = {}
    for name, weight in weights.items():
        stored = weight - 1.0 if is_centred_norm(name) else weight
        if "conv1d.weight" in name:
            stored = weight.moveaxis(1, 2)
        raw[name.replace("language_model.model", "model.language_model")] = stored
    if family != "qwen3_5_moe":
        return one_by_one(raw)
    for name in [name for name in raw if name.endswith("switch_mlp.gate_proj.weight")]:
        stem = name.removesuffix("switch_mlp.gate_proj.weight")
        parts = [raw.pop(f"{stem}switch_mlp.{part}_proj.weight") for part in ("gate", "up")]
        raw[f"{stem}experts.gate_up_proj"] = mx.concatenate(parts, axis=1)
        raw[f"{stem}experts.down_proj"] = raw.pop(f"{stem}switch_mlp.down_proj.weight")
    return raw
