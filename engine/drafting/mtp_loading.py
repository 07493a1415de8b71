"""Where an MTP head's tensors come from: bundled in the target's checkpoint, or published apart."""

import copy
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.utils import infer_quant_config

from ..checkpoint import TensorHeader, read_json, read_tensor_headers, some
from ..errors import ModelError
from ..loading import MTP_TENSOR, Download, LoadedModel, hub_download, resolve
from ..model_config import field
from ..weights import convert_weights
from .mtp import MTPHead

logger = logging.getLogger(__name__)

EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(\w+)\.(weight|scales|biases)")
DECLARED = ("mtp_num_hidden_layers", "num_nextn_predict_layers")

MakeArgs = Callable[[Mapping[str, Any]], Any]
FAMILIES: Mapping[str, tuple[type[nn.Module], MakeArgs]] = {
    "qwen3_5": (qwen3_5.DecoderLayer, qwen3_5.TextModelArgs.from_dict),
    "qwen3_5_moe": (qwen3_5.DecoderLayer, qwen3_5.TextModelArgs.from_dict),
    "qwen3_next": (qwen3_next.Qwen3NextDecoderLayer, qwen3_next.ModelArgs.from_dict),
}


def bundled_head(target: LoadedModel) -> MTPHead | None:
    """Return the head whose ``mtp.*`` tensors ``target``'s checkpoint holds, None if it has none.

    What counts is the tensors, whatever the config declares. Raises ModelError naming the tensor
    where they do not fit the config.
    """
    stored = {
        match[1]: header
        for name, header in target.tensors.items()
        if (match := MTP_TENSOR.fullmatch(name))
    }
    if not stored:
        declared = [name for name in DECLARED if field(target.config, name)]
        note = f" although its config.json declares {declared[0]}" if declared else ""
        logger.info("no MTP head in this checkpoint (%s)%s", target.name, note)
        return None
    if target.model_type not in FAMILIES:
        logger.info(
            "the MTP head of %s is not used: model_type %s is none of %s",
            target.name,
            target.model_type,
            ", ".join(FAMILIES),
        )
        return None
    return _build(target.model_type, target.config, stored, target, _is_raw(target.tensors))


def published_head(name: str, target: LoadedModel, *, download: Download = hub_download) -> MTPHead:
    """Return the head in the folder (or under the hub name) ``name``, checked against ``target``.

    Such a checkpoint has ``model_type`` ``qwen3_5_mtp`` or the like, names without ``mtp.``, and
    norms as they are multiplied. Raises ModelError if it is another model's head.
    """
    path = resolve(name, download=download)
    config = read_json(path / "config.json")
    model_type = str(config.get("model_type"))
    family = model_type.removesuffix("_mtp")
    if family == model_type or family not in FAMILIES:
        heads = ", ".join(f"{family}_mtp" for family in FAMILIES)
        raise ModelError(f"{path} is no MTP head: its model_type {model_type} is none of {heads}")
    if family.removesuffix("_moe") != target.model_type.removesuffix("_moe"):
        raise ModelError(f"{path} is a head for {family}; {target.name} is {target.model_type}")
    for name_ in ("hidden_size", "vocab_size"):
        ours, theirs = field(target.config, name_), field(config, name_)
        if ours != theirs:
            raise ModelError(
                f"{path} is a head for another model: its {name_} is {theirs}, that of "
                f"{target.name} is {ours}"
            )
    stored = {}
    for stored_name, header in read_tensor_headers(path).items():
        match = MTP_TENSOR.fullmatch(stored_name)
        stored[match[1] if match else stored_name] = header
    return _build(family, config, stored, target, is_raw=False)


def _is_raw(tensors: Mapping[str, TensorHeader]) -> bool:
    """Whether norms are stored less one: mlx-lm tells it by the layout of the convolutions."""
    return any(
        "conv1d.weight" in name and header.shape[-1] != 1 for name, header in tensors.items()
    )


def _build(
    family: str,
    config: Mapping[str, Any],
    stored: Mapping[str, TensorHeader],
    target: LoadedModel,
    is_raw: bool,
) -> MTPHead:
    layer_class, make_args = FAMILIES[family]
    try:
        args = make_args(copy.deepcopy(config.get("text_config") or config))
    except TypeError as error:
        raise ModelError(f"the config of {family}'s MTP head is not whole: {error}") from error
    head = MTPHead(args, layer_class)
    weights = _read(stored)
    if is_raw:
        weights = {
            name: weight + 1.0 if weight.ndim == 1 and "norm" in name else weight
            for name, weight in weights.items()
        }
    weights = _join_experts(weights)
    _quantize(head, weights)
    _check(head, weights, stored)
    head.load_weights(list(weights.items()))
    head.eval()
    convert_weights(head, target.dtype)
    mx.eval(head.parameters())
    logger.info("%s has an MTP head: %d tensors", target.name, len(stored))
    return head


def _read(stored: Mapping[str, TensorHeader]) -> dict[str, mx.array]:
    files: dict[Path, Any] = {file: mx.load(str(file)) for file in _files(stored.values())}
    return {name: files[header.file][header.name] for name, header in stored.items()}


def _files(headers: Iterable[TensorHeader]) -> set[Path]:
    return {header.file for header in headers}


def _join_experts(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Bring raw experts, one by one or gate and up fused, into mlx-lm's ``switch_mlp``."""
    joined: dict[str, mx.array] = {}
    singles: dict[str, dict[int, mx.array]] = {}
    for name, weight in weights.items():
        if match := EXPERT.fullmatch(name):
            stacked = f"{match[1]}.switch_mlp.{match[3]}.{match[4]}"
            singles.setdefault(stacked, {})[int(match[2])] = weight
        elif name.endswith(".experts.gate_up_proj"):
            prefix = name.removesuffix("experts.gate_up_proj") + "switch_mlp"
            gate, up = mx.split(weight, 2, axis=-2)
            joined |= {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
        elif name.endswith(".experts.down_proj"):
            prefix = name.removesuffix("experts.down_proj") + "switch_mlp"
            joined[f"{prefix}.down_proj.weight"] = weight
        else:
            joined[name] = weight
    for name, by_number in singles.items():
        joined[name] = mx.stack([by_number[number] for number in sorted(by_number)])
    return joined


def _quantize(head: MTPHead, weights: dict[str, mx.array]) -> None:
    """Make those layers of ``head`` quantized that have scales, as the shapes say they are."""

    def parameters(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        try:
            settings: dict[str, Any] = infer_quant_config(path, module, weights)
        except (ValueError, ZeroDivisionError) as error:
            raise ModelError(f"MTP tensor {path}.weight: {error}") from error
        return settings

    nn.quantize(head, class_predicate=parameters)


def _check(
    head: MTPHead, weights: Mapping[str, mx.array], stored: Mapping[str, TensorHeader]
) -> None:
    """Raise ModelError naming tensors that are missing, superfluous or of another shape."""
    expected = dict(tree_flatten(head.parameters()))
    folder = next(iter(stored.values())).file.parent
    if missing := sorted(expected.keys() - weights.keys()):
        raise ModelError(f"the MTP head in {folder} lacks {some(missing)}")
    if extra := sorted(weights.keys() - expected.keys()):
        raise ModelError(f"the MTP head in {folder} has tensors of no known use: {some(extra)}")
    for name, parameter in expected.items():
        if weights[name].shape != parameter.shape:
            raise ModelError(
                f"MTP tensor {stored[name].name if name in stored else name} in {folder} has "
                f"shape {weights[name].shape}; by its config.json it should have {parameter.shape}"
            )
