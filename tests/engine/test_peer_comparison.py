"""What benchmarks.peers makes of its answers, and the file it writes for llama.cpp."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.comparison import cpu_rate, decode_rate, report, share_alike, whole_rate
from benchmarks.gguf_file import converted, gguf_name, read_safetensors
from benchmarks.peer_side import Clock
from benchmarks.peers import turns

HYBRID = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 1,
    "linear_value_head_dim": 1,
}


def answer(seconds: float) -> dict[str, Any]:
    return {
        "tokens": [[1, 2, 3], [4, 5, 6]],
        "prompt_s": 1.0,
        "decode_s": seconds,
        "decoded": 4,
        "cpu_s": 3.0,
    }


def test_decoding_counts_from_the_step_in_which_the_last_row_began() -> None:
    clock = Clock(2)
    clock.note(0, [1])
    clock.step()
    clock.note(0, [2])
    clock.note(1, [7])
    clock.step()
    clock.note(0, [3])
    clock.note(1, [8, 9])
    clock.step()

    said = clock.answer()
    assert said["tokens"] == [[1, 2, 3], [7, 8, 9]]
    assert said["decoded"] == 3  # 3, 8 and 9
    assert said["prompt_s"] > 0
    assert said["decode_s"] > 0


def test_rates_are_of_decoding_alone_of_the_whole_run_and_of_processor_time() -> None:
    assert decode_rate(answer(2.0)) == 2.0  # 4 tokens in 2 seconds
    assert whole_rate(answer(2.0)) == 2.0  # 6 tokens in 1 + 2 seconds
    assert cpu_rate(answer(5.0)) == 2.0  # 6 tokens for 3 seconds of processors


def test_a_faster_peer_comes_first_and_is_named() -> None:
    lines = report(
        {
            "engine": [answer(2.0)] * 3,
            "slow": [answer(4.0)] * 3,
            "fast": [answer(1.0)] * 3,
            "same": [answer(1.9), answer(2.1), answer(2.2)],
        }
    )
    assert [(line["faster"], line["peer"], line["phase"]) for line in lines] == [
        ("fast", "fast", "decode"),
        ("fast", "fast", "whole"),
        ("engine", "slow", "decode"),
        ("engine", "slow", "whole"),
        ("neither", "slow", "cpu"),
        ("neither", "fast", "cpu"),
        ("neither", "same", "decode"),
        ("neither", "same", "whole"),
        ("neither", "same", "cpu"),
    ]
    assert lines[0]["ratio"] == 0.5
    assert lines[1]["ratio"] == pytest.approx(2 / 3)


def test_a_peer_of_fewer_rounds_is_compared_over_those() -> None:
    lines = report({"engine": [answer(2.0), answer(2.0), answer(9.0)], "slow": [answer(4.0)] * 2})

    found = [(line["ratio"], line["num_pairs"]) for line in lines]
    assert found == [(2.0, 2), (5 / 3, 2), (1.0, 2)]


def test_a_refusal_is_the_result() -> None:
    lines = report({"engine": [answer(2.0)], "peer": [{"refused": "no trimming"}]})

    assert lines == [
        {
            "faster": None,
            "side": "engine",
            "peer": "peer",
            "refused_by": "peer",
            "refused": "no trimming",
        }
    ]


def test_tokens_are_alike_until_they_part() -> None:
    assert share_alike([[1, 2, 3], [4, 5, 6]], [[1, 2, 9], [8, 5, 6]]) == pytest.approx(2 / 6)


def test_every_side_goes_first_and_last_in_turn() -> None:
    orders = [turns(["a", "b", "c"], number) for number in range(6)]  # type: ignore[list-item]

    assert ["".join(order) for order in orders] == ["abc", "cba", "bca", "acb", "cab", "bac"]


def test_value_heads_turn_from_grouped_to_tiled() -> None:
    """Grouped: key head 0 has values 0 and 1. Tiled: the first of each, then the second."""
    name = "model.layers.0.linear_attn"
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)  # 2 queries, 2 keys, 4 values

    qkv = converted(f"{name}.in_proj_qkv.weight", rows, HYBRID)
    gates = converted(f"{name}.in_proj_z.weight", rows[:4], HYBRID)
    out = converted(f"{name}.out_proj.weight", rows[:4].T, HYBRID)
    decay = converted(f"{name}.A_log", np.log(rows[1:5, 0]), HYBRID)

    assert qkv.ravel().tolist() == [0, 1, 2, 3, 4, 6, 5, 7]
    assert gates.ravel().tolist() == [0, 2, 1, 3]
    assert out.tolist() == [[0, 2, 1, 3]]
    assert decay == pytest.approx([-1, -3, -2, -4])


def test_tensors_get_the_names_of_llama_cpp() -> None:
    after_attention = "model.layers.3.post_attention_layernorm.weight"

    assert gguf_name("model.norm.weight", "qwen3") == "output_norm.weight"
    assert gguf_name(after_attention, "qwen3") == "blk.3.ffn_norm.weight"
    assert gguf_name(after_attention, "qwen35") == "blk.3.post_attention_norm.weight"
    assert gguf_name("model.layers.3.linear_attn.A_log", "qwen35") == "blk.3.ssm_a"
    with pytest.raises(KeyError):
        gguf_name("model.layers.3.mlp.router.weight", "qwen3")


def test_a_safetensors_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    stored = {"b": mx.arange(6, dtype=mx.float32).reshape(2, 3), "a": mx.array([0.5])}
    mx.save_safetensors(str(file), stored, {"format": "mlx"})

    found = dict(read_safetensors(file))
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in stored.items()
    }
    mx.save_safetensors(str(file), {"half": mx.array([0.5], mx.float16)})
    with pytest.raises(ValueError, match=r"half in .* is F16"):
        dict(read_safetensors(file))
