"""MTP heads that are absent, unfit or another model's."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mtp_checkpoints import make_tiny, publish

from engine.drafting.mtp_loading import bundled_head, published_head
from engine.errors import ModelError
from engine.loading import EMBEDDED, LoadedModel, load

CopyModel = Callable[[str], Path]
Change = Callable[[dict[str, mx.array]], object]


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load("demo")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(EMBEDDED["demo"], tmp_path / "head")


def edit_tensors(folder: Path, change: Change) -> None:
    """Apply ``change`` to the tensors of every weight file, and drop the index."""
    for file in folder.glob("*.safetensors"):
        weights = dict(mx.load(str(file)))
        mx.eval(weights)
        change(weights)
        mx.save_safetensors(str(file), weights)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


def drop_mtp(weights: dict[str, mx.array]) -> None:
    for name in [name for name in weights if name.startswith("mtp.")]:
        del weights[name]


def test_a_head_that_is_declared_but_absent_is_logged_and_none(
    copy_model: CopyModel, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_model("demo")
    edit_tensors(folder, drop_mtp)

    with caplog.at_level(logging.INFO, "engine"):
        assert bundled_head(load(str(folder))) is None

    assert "no MTP head in this checkpoint" in caplog.text
    assert "although its config.json declares mtp_num_hidden_layers" in caplog.text


def test_a_head_that_is_listed_in_a_stale_index_but_absent_is_none(copy_model: CopyModel) -> None:
    folder = copy_model("demo")
    index = (folder / "model.safetensors.index.json").read_bytes()
    edit_tensors(folder, drop_mtp)
    (folder / "model.safetensors.index.json").write_bytes(index)

    assert bundled_head(load(str(folder))) is None


def test_a_head_that_is_present_but_not_declared_is_loaded(copy_model: CopyModel) -> None:
    folder = copy_model("demo")
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["mtp_num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))

    assert bundled_head(load(str(folder))) is not None


def test_a_model_without_a_head_has_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "engine"):
        assert bundled_head(load("demo-draft")) is None

    assert "no MTP head in this checkpoint (demo-draft)" in caplog.text
    assert "declares" not in caplog.text


def test_mtp_tensors_of_another_family_are_left_alone_and_logged(
    target: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    draft = load("demo-draft")
    foreign = {name: h for name, h in target.tensors.items() if name.startswith("mtp.")}
    with_head = LoadedModel(
        **{name: getattr(draft, name) for name in draft.__slots__ if name != "tensors"},
        tensors=dict(draft.tensors) | foreign,
    )

    with caplog.at_level(logging.INFO, "engine"):
        assert bundled_head(with_head) is None

    assert (
        "is not used: model_type qwen3 is none of qwen3_5, qwen3_5_moe, qwen3_next" in caplog.text
    )


FC = "mtp.fc.weight"
UNFIT: dict[str, tuple[Change, str]] = {
    "a tensor of another shape": (
        lambda weights: weights.update({FC: mx.zeros((256, 256))}) if FC in weights else None,
        r"MTP tensor mtp.fc.weight in .* has shape \(256, 256\); by its config.json it should "
        r"have \(256, 512\)",
    ),
    "a tensor is missing": (
        lambda weights: weights.pop(FC, None),
        r"the MTP head in .* lacks fc.weight$",
    ),
    "a second layer": (
        lambda weights: weights.update({"mtp.layers.1.mlp.up_proj.weight": mx.zeros((1,))}),
        r"the MTP head in .* has tensors of no known use: layers.1.mlp.up_proj.weight$",
    ),
    "an embedding of its own": (
        lambda weights: weights.update({"mtp.embed_tokens.weight": mx.zeros((1,))}),
        "has tensors of no known use: embed_tokens.weight$",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNFIT.values(), ids=UNFIT)
def test_a_bundled_head_that_does_not_fit_is_refused_naming_the_tensor(
    copy_model: CopyModel, change: Change, message: str
) -> None:
    folder = copy_model("demo")
    edit_tensors(folder, change)
    loaded = load(str(folder))

    with pytest.raises(ModelError, match=message):
        bundled_head(loaded)


def test_a_published_head_of_another_shape_is_refused_naming_the_tensor(
    published: Path, target: LoadedModel
) -> None:
    edit_tensors(published, lambda weights: weights.update({"fc.weight": mx.zeros((256, 3))}))

    with pytest.raises(ModelError, match=r"MTP tensor fc.weight in .* has shape \(256, 3\)"):
        published_head(str(published), target)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 128, "its hidden_size is 128, that of demo is 256"),
        ("vocab_size", 151936, "its vocab_size is 151936, that of demo is 8192"),
    ],
)
def test_a_head_for_another_model_is_refused_by_its_sizes(
    published: Path, target: LoadedModel, field: str, value: int, message: str
) -> None:
    config = json.loads((published / "config.json").read_text())
    config["text_config"][field] = value
    (published / "config.json").write_text(json.dumps(config))

    with pytest.raises(ModelError, match=f"is a head for another model: {message}"):
        published_head(str(published), target)


def test_a_head_for_another_family_is_refused(published: Path, tmp_path: Path) -> None:
    make_tiny("qwen3_next", "raw", tmp_path / "next", EMBEDDED["demo"])

    with pytest.raises(ModelError, match=r"is a head for qwen3_5; .*next is qwen3_next"):
        published_head(str(published), load(str(tmp_path / "next")))


def test_a_whole_model_in_the_place_of_a_head_is_refused(target: LoadedModel) -> None:
    with pytest.raises(
        ModelError, match="is no MTP head: its model_type qwen3 is none of qwen3_5_mtp"
    ):
        published_head("demo-draft", target)


def test_a_half_downloaded_head_is_refused_naming_the_file(
    published: Path, target: LoadedModel
) -> None:
    file = published / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(ModelError, match=r"model.safetensors is cut short"):
        published_head(str(published), target)
