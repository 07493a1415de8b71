"""Folders that cannot be loaded: each error names the file, tensor or field."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import _get_classes

from engine.errors import ModelError
from engine.loading import load
from engine.ragged import SILENTLY_WRONG, refuse_if_not_ragged

CopyModel = Callable[[str], Path]
Spoil = Callable[[Path], object]

FIRST, SECOND = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))


def config(**changes: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | changes
        kept = {name: value for name, value in content.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return spoil


def text_config(**changes: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        content["text_config"] |= changes
        (folder / "config.json").write_text(json.dumps(content))

    return spoil


def rename(name: str, new_name: str) -> Spoil:
    return lambda folder: (folder / name).rename(folder / new_name)


def remove(*names: str) -> Spoil:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, content: str | bytes) -> Spoil:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, size: int) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def all_of(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]


def tensors(change: Callable[[dict[str, mx.array]], object]) -> Spoil:
    """Change the tensors of the draft model's only weight file."""

    def spoil(folder: Path) -> None:
        file = str(folder / "model.safetensors")
        weights = dict(mx.load(file))
        mx.eval(weights)
        change(weights)
        mx.save_safetensors(file, weights)

    return spoil


GATE = "model.layers.1.mlp.gate_proj.weight"

CASES: dict[str, tuple[str, Spoil, str]] = {
    "no config": ("demo-draft", remove("config.json"), "has no config.json"),
    "config is no JSON": ("demo-draft", write("config.json", "{"), "config.json is not readable"),
    "config is a list": ("demo-draft", write("config.json", "[]"), "it must be an object"),
    "no model_type": ("demo-draft", config(model_type=None), "lacks the field model_type"),
    "unknown model_type": (
        "demo-draft",
        config(model_type="qwen99"),
        "model_type 'qwen99' is not one that mlx-lm .* runs",
    ),
    "a field is missing": (
        "demo-draft",
        config(num_attention_heads=None, hidden_size=None),
        "config.json of a qwen3 lacks the field hidden_size, num_attention_heads",
    ),
    "code in the checkpoint": ("demo-draft", config(model_file="model.py"), "model_file"),
    "shapes do not fit": (
        "demo-draft",
        config(intermediate_size=500),
        r"tensor model.layers.\d.mlp.\w+.weight in .*model.safetensors has shape "
        r"\((512, 192|192, 512)\); by config.json it should have \((500, 192|192, 500)\)",
    ),
    "one tensor has another shape": (
        "demo-draft",
        tensors(lambda weights: weights.update({GATE: mx.zeros((3, 192))})),
        rf"tensor {GATE} in .*model.safetensors has shape \(3, 192\); by config.json it should "
        r"have \(512, 192\)",
    ),
    "the stored name differs from mlx-lm's": (
        "demo",
        text_config(vocab_size=8000),
        r"tensor model.language_model.embed_tokens.weight in .*-00001-of-00002.safetensors has "
        r"shape \(8192, 256\); by config.json it should have \(8000, 256\)",
    ),
    "a tensor is missing": (
        "demo-draft",
        tensors(lambda weights: weights.pop(GATE)),
        f"lacks tensors that its config.json calls for: {GATE}$",
    ),
    "a tensor too many": (
        "demo-draft",
        tensors(lambda weights: weights.update(extra=mx.zeros((1,)))),
        "holds tensors that its config.json has no place for: extra$",
    ),
    "more layers stored than configured": (
        "demo-draft",
        config(num_hidden_layers=2),
        r"no place for: model.layers.2.input_layernorm.weight, .* and 7 more",
    ),
    "no weights": ("demo-draft", remove("model.safetensors"), "holds no model.*safetensors"),
    "weights for PyTorch only": (
        "demo-draft",
        rename("model.safetensors", "pytorch_model.bin"),
        "it has pytorch_model.bin, which is not loaded",
    ),
    "a shard is missing": ("demo", remove(SECOND), f"lacks {SECOND} of its weight files"),
    "a shard is missing and there is no index": (
        "demo",
        remove(SECOND, "model.safetensors.index.json"),
        f"lacks {SECOND} of its weight files",
    ),
    "a shard is half-downloaded": (
        "demo",
        rename(SECOND, SECOND + ".incomplete"),
        f"lacks {SECOND} .*; half-downloaded: {SECOND}.incomplete; download",
    ),
    "the index is broken": (
        "demo",
        write("model.safetensors.index.json", "{}"),
        "index.json lacks the field weight_map",
    ),
    "an empty file": ("demo", cut(FIRST, 0), f"{FIRST} holds 0 bytes"),
    "cut in the header": ("demo", cut(FIRST, 1000), "holds 1000 bytes where its header alone"),
    "cut in the data": (
        "demo",
        cut(FIRST, 13_000_000),
        "is cut short: its header claims 13710488 bytes, it holds 13000000",
    ),
    "a Git LFS pointer": (
        "demo",
        write(FIRST, "version https://git-lfs.github.com/spec/v1\n"),
        "is a Git LFS pointer",
    ),
    "no safetensors at all": (
        "demo-draft",
        write("model.safetensors", struct.pack("<Q", 4) + b"oops"),
        "model.safetensors has no safetensors header",
    ),
    "no tokenizer": (
        "demo-draft",
        remove("tokenizer.json", "tokenizer_config.json"),
        "has no tokenizer: none of tokenizer.json",
    ),
    "a broken tokenizer": (
        "demo-draft",
        write("tokenizer.json", "{"),
        "the tokenizer in .* cannot be loaded",
    ),
    "a generation config with a word for a number": (
        "demo-draft",
        write("generation_config.json", '{"temperature": "hot"}'),
        "generation_config.json: temperature is 'hot'; it must be a number",
    ),
    "an adapter alone": (
        "demo-draft",
        all_of(remove("config.json"), write("adapter_config.json", "{}")),
        "adapter_config.json: LoRA adapters are not supported yet",
    ),
    "LoRA weights among the others": (
        "demo-draft",
        tensors(lambda weights: weights.update({"model.q.lora_a": mx.zeros((1,))})),
        "holds LoRA weights, not supported yet: model.q.lora_a",
    ),
    "an MTP head for a model": (
        "demo-draft",
        config(model_type="qwen3_5_mtp"),
        r"is an MTP head \(qwen3_5_mtp\), not a model of its own",
    ),
    "one rotary base for all rows": (
        "demo-draft",
        config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        r"model_type 'qwen3' cannot be batched: DynamicNTKScalingRoPE.__call__ of",
    ),
}


@pytest.mark.parametrize(("model", "spoil", "message"), CASES.values(), ids=CASES)
def test_a_folder_that_cannot_work_is_refused_naming_what_is_wrong(
    copy_model: CopyModel, model: str, spoil: Spoil, message: str
) -> None:
    folder = copy_model(model)
    spoil(folder)

    with pytest.raises(ModelError, match=message):
        load(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dmeo", r"neither a folder nor an embedded model \(demo, demo-draft\)"),
        ("./demo", "the folder ./demo does not exist"),
        ("/nowhere/at/all", "the folder /nowhere/at/all does not exist"),
        (__file__, "is a file; a model is named by the folder that holds it"),
    ],
)
def test_a_name_that_means_nothing_is_refused_saying_what_names_there_are(
    name: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(name)


def test_a_hub_that_cannot_be_reached_is_named_with_its_reason() -> None:
    def download(name: str) -> Path:
        raise ConnectionError("no route to host")

    with pytest.raises(ModelError, match=r"some/model is no folder here.*no route to host"):
        load("some/model", download=download)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "gpt_bigcode", "n_embd": 32, "n_layer": 1, "n_inner": 32, "n_head": 2}
            | {"n_positions": 32, "layer_norm_epsilon": 1e-5, "vocab_size": 64},
            "'gpt_bigcode' cannot be batched: GPTBigCodeModel.__call__ of mlx_lm.models",
        ),
        (
            {"model_type": "phi3small", "hidden_size": 128, "dense_attention_every_n_layers": 2}
            | {"ff_intermediate_size": 64, "gegelu_limit": 1.0, "num_hidden_layers": 2}
            | {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_norm_epsilon": 1e-4}
            | {"vocab_size": 64},
            "'phi3small' cannot be batched: its block-sparse mask",
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_model_that_cannot_run_rows_at_different_positions_is_refused(
    fields: dict[str, object], message: str
) -> None:
    model_class, arguments = _get_classes(fields)
    model = model_class(arguments.from_dict(fields))

    with pytest.raises(ModelError, match=message):
        refuse_if_not_ragged(model, str(fields["model_type"]))


def test_every_class_listed_as_silently_wrong_exists_in_mlx_lm() -> None:
    for module, name in SILENTLY_WRONG:
        imported = __import__(f"mlx_lm.models.{module}", fromlist=[name])
        assert isinstance(getattr(imported, name), type)
