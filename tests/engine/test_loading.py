"""Models that load, and what their folders are told to say."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_model

from engine import weights
from engine.errors import ModelError
from engine.loading import DEMO_PROMPTS, EMBEDDED, load

CopyModel = Callable[[str], Path]


def edit_json(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))


def test_the_demo_model_loads_with_what_its_folder_says() -> None:
    loaded = load("demo")

    assert (loaded.model_type, loaded.vocab_size, loaded.max_context) == ("qwen3_5", 8192, 4096)
    assert loaded.eos_ids == {8189, 8191}
    assert loaded.sampling_defaults == {}
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("The sea")) == "The sea"
    assert type(loaded.model).__module__ == "mlx_lm.models.qwen3_5"
    assert "mtp.fc.weight" in loaded.tensors


def test_a_local_folder_loads_like_the_embedded_model_it_copies(copy_model: CopyModel) -> None:
    loaded = load(str(copy_model("demo-draft")))
    tokens = mx.array([loaded.tokenizer.encode("The sea")])

    assert mx.array_equal(loaded.model(tokens), load("demo-draft").model(tokens))


def test_a_hub_name_is_downloaded_and_its_folder_loaded(copy_model: CopyModel) -> None:
    asked: list[str] = []

    def download(name: str) -> Path:
        asked.append(name)
        return copy_model("demo-draft")

    loaded = load("someone/some-model", download=download)

    assert asked == ["someone/some-model"]
    assert loaded.model_type == "qwen3"


def test_on_a_cpu_every_floating_point_weight_becomes_float32() -> None:
    with mx.stream(mx.cpu):
        weights = tree_flatten(load("demo", dtype=None).model.parameters())
    assert mx.default_device() == mx.Device(mx.cpu)
    assert {weight.dtype for _, weight in weights} == {mx.float32}


def test_a_type_asked_for_is_given_except_to_the_decay_rates() -> None:
    weights = dict(tree_flatten(load("demo", dtype="bfloat16").model.parameters()))

    decay = {name for name in weights if name.endswith("A_log")}
    assert len(decay) == 6
    assert {weights[name].dtype for name in decay} == {mx.float32}
    assert {weights[name].dtype for name in weights.keys() - decay} == {mx.bfloat16}


def quantized(folder: Path) -> Path:
    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size=64, bits=4)
    (folder / "model.safetensors").unlink()
    save_model(folder, model)
    edit_json(folder / "config.json", quantization=config["quantization"])
    return folder


def test_a_quantized_checkpoint_computes_what_its_packed_weights_say(
    copy_model: CopyModel, caplog: pytest.LogCaptureFixture
) -> None:
    folder = quantized(copy_model("demo-draft"))
    tokens = mx.array([[1, 2, 3, 4]])

    with caplog.at_level(logging.INFO, "engine"):
        unpacked = load(str(folder)).model
    packed = load(str(folder), dtype="float32").model

    assert "quantized weights become float32 matrices" in caplog.text
    assert "scales" in packed.layers[0].mlp.up_proj
    assert "scales" not in unpacked.layers[0].mlp.up_proj
    assert mx.allclose(unpacked(tokens), packed(tokens), atol=1e-3)


def test_quantized_weights_stay_packed_where_the_process_may_not_have_the_memory(
    copy_model: CopyModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantized(copy_model("demo-draft"))
    monkeypatch.setattr(weights, "memory_limit", lambda: 1 << 20)
    with caplog.at_level(logging.WARNING, "engine"):
        model = load(str(folder)).model

    assert "scales" in model.layers[0].mlp.up_proj
    assert "more than half of the memory that there is" in caplog.text


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"temperature": 0.6, "top_k": 20, "do_sample": True}, {"temperature": 0.6, "top_k": 20}),
        ({"top_p": 0.8, "repetition_penalty": 1.05}, {"top_p": 0.8, "repetition_penalty": 1.05}),
        ({"temperature": 0.6, "do_sample": False}, {"temperature": 0.0}),
    ],
)
def test_the_generation_config_gives_sampling_defaults(
    copy_model: CopyModel, stated: dict[str, object], expected: dict[str, float]
) -> None:
    folder = copy_model("demo-draft")
    edit_json(folder / "generation_config.json", **stated)

    assert load(str(folder)).sampling_defaults == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4096),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 2048,
                }
            },
            8192,
        ),
    ],
)
def test_the_context_length_is_what_config_and_rope_scaling_allow(
    copy_model: CopyModel, changes: dict[str, object], expected: int
) -> None:
    folder = copy_model("demo-draft")
    edit_json(folder / "config.json", **changes)

    assert load(str(folder)).max_context == expected


def test_without_a_generation_config_the_end_tokens_are_those_of_config_and_tokenizer(
    copy_model: CopyModel,
) -> None:
    folder = copy_model("demo-draft")
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", eos_token_id=7)

    loaded = load(str(folder))

    assert loaded.eos_ids == {7, loaded.tokenizer._tokenizer.eos_token_id}


def test_tensors_of_a_vision_part_are_left_out_and_logged(
    copy_model: CopyModel, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_model("demo")
    mx.save_safetensors(
        str(folder / "model-vision.safetensors"), {"model.visual.patch.weight": mx.zeros((2, 2))}
    )

    with caplog.at_level(logging.INFO, "engine"):
        load(str(folder))

    assert "1 tensors of its vision or audio part are not used" in caplog.text


def test_the_demo_prompts_are_fifty_lines_with_an_id_and_something_to_answer() -> None:
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]

    assert len({line["custom_id"] for line in lines}) == 50
    assert all(("prompt" in line) != ("messages" in line) for line in lines)


def test_an_unknown_type_of_weights_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ModelError, match="dtype 'int8' is not one of float32, bfloat16, float16"):
        load("demo", dtype="int8")


def test_embedded_folders_hold_no_more_than_a_model(tmp_path: Path) -> None:
    for folder in EMBEDDED.values():
        shutil.copytree(folder, tmp_path / folder.name)
        assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}
