"""Writes a folder of ``benchmarks.shapes`` as a GGUF file of float32, for llama.cpp.

Runs in llama.cpp's own environment, which has ``gguf`` and needs no torch; names and layouts follow
llama.cpp's convert_hf_to_gguf.py. There is no tokenizer in the file: prompts are token ids.

    /tmp/llama/venv/bin/python -P benchmarks/gguf_file.py FOLDER FILE
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gguf import GGUFWriter

Array = npt.NDArray[np.float32]

ARCHITECTURES = {"qwen3": "qwen3", "qwen3_5": "qwen35"}
WHOLE = {  # of the whole model
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {  # of one layer, both architectures
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
AFTER_ATTENTION = {"qwen3": "ffn_norm.weight", "qwen35": "post_attention_norm.weight"}


def write_gguf(folder: Path, file: Path) -> None:
    """Write the model in ``folder`` (config.json, model*.safetensors of float32) to ``file``."""
    from gguf import GGUFWriter

    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    text = config.get("text_config", config)
    writer = GGUFWriter(str(file), arch)
    _add_fields(writer, arch, text)
    for path in sorted(folder.glob("model*.safetensors")):
        for stored, array in read_safetensors(path):
            name = stored.removeprefix("language_model.")
            writer.add_tensor(gguf_name(name, arch), converted(name, array, text))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(writer: "GGUFWriter", arch: str, text: dict[str, Any]) -> None:
    rope = text.get("rope_parameters") or {}
    writer.add_file_type(0)  # all float32
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or text["rope_theta"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(text["vocab_size"])
    if arch == "qwen35":
        rotated = int(text["head_dim"] * rope["partial_rotary_factor"])
        writer.add_rope_dimension_count(rotated)
        # text alone: a token's three positions are equal, so how they share the channels is all one
        writer.add_rope_dimension_sections([*rope.get("mrope_section", [11, 11, 10]), 0])
        writer.add_ssm_conv_kernel(text["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(text["linear_key_head_dim"])
        writer.add_ssm_group_count(text["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(text["linear_num_value_heads"])
        writer.add_ssm_inner_size(text["linear_value_head_dim"] * text["linear_num_value_heads"])
        writer.add_uint32(f"{arch}.full_attention_interval", text["full_attention_interval"])


def read_safetensors(path: Path) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a file by name, as views of it. Raises ValueError if one is not F32."""
    stored = np.memmap(path, np.uint8, mode="r")
    length = int(stored[:8].view(np.uint64)[0])
    for name, entry in json.loads(stored[8 : 8 + length].tobytes()).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} in {path} is {entry['dtype']}, not F32")
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        yield name, np.frombuffer(stored[begin:end], np.float32).reshape(entry["shape"])


def gguf_name(name: str, arch: str) -> str:
    """Return llama.cpp's name of a tensor. Raises KeyError for one that it has no place for."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    if rest == "post_attention_layernorm.weight":
        return f"blk.{layer}.{AFTER_ATTENTION[arch]}"
    return f"blk.{layer}.{LAYER[rest]}"


def converted(name: str, array: Array, text: dict[str, Any]) -> Array:
    """Return a tensor as llama.cpp lays it out.

    It wants -exp(A_log), a convolution without its axis of one, and the value heads in tiled order:
    the first of every key head, then the second of every key head.
    """
    if ".linear_attn." not in name:
        return array
    if name.endswith(".A_log"):
        array = -np.exp(array)
    if ".conv1d." in name:
        array = array.reshape(array.shape[0], -1)
    key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    size = text["linear_value_head_dim"]
    if ".in_proj_qkv." in name or ".conv1d." in name:
        before = 2 * key_heads * text["linear_key_head_dim"]
        tiled = _tiled(array[before:], key_heads, value_heads, size)
        return np.concatenate([array[:before], tiled])
    if ".in_proj_z." in name:
        return _tiled(array, key_heads, value_heads, size)
    if ".out_proj." in name:
        return np.ascontiguousarray(_tiled(array.T, key_heads, value_heads, size).T)
    if name.endswith(".linear_attn.norm.weight"):
        return array
    return _tiled(array, key_heads, value_heads, 1)


def _tiled(array: Array, key_heads: int, value_heads: int, size: int) -> Array:
    """Turn the first axis from grouped by key head to tiled."""
    grouped = array.reshape(key_heads, value_heads // key_heads, size, *array.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(0, 1)).reshape(array.shape)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
