"""Loading a model by name: an embedded one, a local folder, or a name on the hub.

mlx-lm builds the model and its tokenizer; what is added here is that a folder which cannot work
is refused before its weights are read, in words that name the file, tensor or field.
"""

import copy
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .checkpoint import TensorHeader, read_json, read_tensor_headers, some
from .errors import ModelError
from .model_config import (
    field,
    read_eos_ids,
    read_max_context,
    read_sampling_defaults,
    read_vocab_size,
)
from .ragged import refuse_if_not_ragged
from .weights import choose_dtype, convert_weights

logger = logging.getLogger(__name__)

DEMO_FOLDER = Path(__file__).parent / "demo"
EMBEDDED = {"demo": DEMO_FOLDER / "hybrid", "demo-draft": DEMO_FOLDER / "draft"}
DEMO_PROMPTS = DEMO_FOLDER / "prompts.jsonl"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
ADAPTER_FILES = ("adapter_config.json", "adapters.safetensors", "adapter_model.safetensors")
SHAPES = re.compile(r"Expected shape (\(.*\)) but received shape (\(.*\)) for parameter (\S+)")
MTP_TENSOR = re.compile(r"(?:.*\.)?mtp\.(.+)")  # of a head bundled with its target
OTHER_SENSES = re.compile(r"vision|visual|audio|image_newline|multi_modal")

Download = Callable[[str], Path]  # hub name -> local folder; raises whatever the hub's client does


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what its folder says about running it."""

    name: str
    path: Path
    model: Any  # mlx-lm's own object
    tokenizer: TokenizerWrapper
    config: Mapping[str, Any]  # config.json as mlx-lm read it
    model_type: str
    vocab_size: int
    max_context: int | None  # positions the model was made for; None if its config does not say
    eos_ids: frozenset[int]
    sampling_defaults: Mapping[str, float]  # fields of SamplingParams set by generation_config.json
    tensors: Mapping[str, TensorHeader]  # everything that the checkpoint stores, by stored name
    dtype: str | None  # as asked for at loading


def hub_download(name: str) -> Path:
    """Return the local copy of a model on the hub, fetched if need be."""
    return mlx_lm_utils._download(name)


def load(name: str, *, dtype: str | None = None, download: Download = hub_download) -> LoadedModel:
    """Load the model called ``name`` onto MLX's default device.

    ``demo`` and ``demo-draft`` are embedded (``./demo`` is a folder of that name); anything else
    is a folder, or else a hub name (owner/model). ``dtype`` is float32, bfloat16 or float16;
    without it a CPU runs in float32 and other devices in the checkpoint's own type.

    Raises ModelError naming the file, tensor or field that is wrong.
    """
    choose_dtype(dtype)
    path = resolve(name, download=download)
    config = _read_config(path)
    tensors = read_tensor_headers(path)
    if not any((path / file).exists() for file in TOKENIZER_FILES):
        raise ModelError(f"{path} has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
    sampling_defaults = read_sampling_defaults(path)
    model, config = _load_model(path, config, tensors)
    refuse_if_not_ragged(model, config["model_type"])
    _log_ignored(path, tensors)
    convert_weights(model, dtype)
    mx.eval(model.parameters())
    tokenizer = _load_tokenizer(path, config)
    return LoadedModel(
        name=name,
        path=path,
        model=model,
        tokenizer=tokenizer,
        config=config,
        model_type=config["model_type"],
        vocab_size=read_vocab_size(model, config, tokenizer),
        max_context=read_max_context(config),
        eos_ids=read_eos_ids(name, config, tokenizer),
        sampling_defaults=sampling_defaults,
        tensors=tensors,
        dtype=dtype,
    )


def resolve(name: str, *, download: Download) -> Path:
    """Return the folder that ``name`` means, fetching it with ``download`` if it is a hub name."""
    if name in EMBEDDED:
        return EMBEDDED[name]
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{name} is a file; a model is named by the folder that holds it")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        if "/" in name or "\\" in name:
            raise ModelError(f"the folder {name} does not exist")
        raise ModelError(
            f"{name!r} is neither a folder nor an embedded model ({', '.join(EMBEDDED)}); "
            "a model on the hub is named owner/model"
        )
    try:
        return Path(download(name))
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{name} is no folder here, and the hub does not give it: "
            f"{type(error).__name__}: {reason[0] if reason else ''}"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    adapters = [file for file in ADAPTER_FILES if (path / file).exists()]
    if adapters:
        raise ModelError(
            f"{path / adapters[0]}: LoRA adapters are not supported yet; merge the adapter into "
            "its model first (mlx_lm.fuse)"
        )
    config = read_json(path / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{path / 'config.json'} lacks the field model_type")
    if model_type.endswith("_mtp"):
        raise ModelError(
            f"{path} is an MTP head ({model_type}), not a model of its own; it is loaded beside "
            "its target"
        )
    if "model_file" in config:
        raise ModelError(f"{path / 'config.json'}: model_file asks to run code; not supported")
    return config


def _load_model(
    path: Path, config: dict[str, Any], tensors: Mapping[str, TensorHeader]
) -> tuple[Any, dict[str, Any]]:
    """Build the model with its weights attached but not read yet."""
    file, model_type = path / "config.json", config["model_type"]
    try:
        _, arguments = mlx_lm_utils._get_classes(config)
    except (ValueError, AttributeError) as error:
        raise ModelError(
            f"{file}: model_type {model_type!r} is not one that mlx-lm {mlx_lm.__version__} runs"
        ) from error
    try:
        arguments.from_dict(copy.deepcopy(config))
    except Exception as error:
        missing = re.findall(r"'(\w+)'", str(error)) if "missing" in str(error) else []
        reason = f"lacks the field {some(missing)}" if missing else f"is not usable: {error}"
        raise ModelError(f"{file} of a {model_type} {reason}") from error
    try:
        model, loaded_config = mlx_lm_utils.load_model(
            path, lazy=True, get_model_classes=_classes_without_mtp
        )
    except Exception as error:
        raise ModelError(_misfit(path, model_type, tensors, error)) from error
    if "sanitize" in vars(model):
        del model.sanitize
    return model, loaded_config


def _classes_without_mtp(config: dict[str, Any]) -> tuple[Any, Any]:
    """Return mlx-lm's classes for ``config``, so that a model which has no MTP head ignores one.

    Most families drop ``mtp.*`` tensors themselves, but qwen3_next only from raw checkpoints.
    """
    model_class, arguments = mlx_lm_utils._get_classes(config)

    def build(args: Any) -> Any:
        model = model_class(args)
        if hasattr(model, "sanitize") and not hasattr(model, "mtp"):
            sanitize = model.sanitize
            model.sanitize = lambda weights: sanitize(
                {name: w for name, w in weights.items() if not MTP_TENSOR.fullmatch(name)}
            )
        return model

    return build, arguments


def _misfit(
    path: Path, model_type: str, tensors: Mapping[str, TensorHeader], error: Exception
) -> str:
    """Say in words why mlx-lm did not accept the tensors of ``path``."""
    text = str(error)
    if shapes := re.match(
        r"Expected shape (\(.*\)) but received shape (\(.*\)) for .* (\S+)", text
    ):
        expected, found, name = shapes.groups()
        stored = _stored_name(name, tensors)
        where = f"{stored.name} in {stored.file}" if stored else f"{name} in {path}"
        return f"tensor {where} has shape {found}; by config.json it should have {expected}"
    if names := re.match(r"Missing \d+ parameters: \s*([^\0]*)\.", text):
        return f"{path} lacks tensors that its config.json calls for: {_names(names[1])}"
    if names := re.match(r"Received \d+ parameters not in model: \s*([^\0]*)\.", text):
        if "lora" in names[1].lower():
            return f"{path} holds LoRA weights, not supported yet: {_names(names[1])}"
        return f"{path} holds tensors that its config.json has no place for: {_names(names[1])}"
    if isinstance(error, KeyError):
        return f"{path} lacks the tensor or config.json the field {error}"
    return f"{path} cannot be loaded as a {model_type}: {type(error).__name__}: {text}"


def _names(listed: str) -> str:
    return some([name.strip() for name in listed.split(",")])


def _stored_name(name: str, tensors: Mapping[str, TensorHeader]) -> TensorHeader | None:
    """Return the stored tensor whose name ends most like the model's own ``name`` for it."""
    parts = name.split(".")[::-1]

    def common(stored: str) -> int:
        pairs = zip(parts, stored.split(".")[::-1], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(parts))

    best = max(tensors, key=common, default=None)
    return tensors[best] if best is not None and common(best) >= 2 else None


def _log_ignored(path: Path, tensors: Mapping[str, TensorHeader]) -> None:
    ignored = [name for name in tensors if OTHER_SENSES.search(name)]
    if ignored:
        logger.info(
            "%s: %d tensors of its vision or audio part are not used (%s): text only",
            path,
            len(ignored),
            some(ignored, 1),
        )


def _load_tokenizer(path: Path, config: Mapping[str, Any]) -> TokenizerWrapper:
    try:
        tokenizer: TokenizerWrapper = mlx_lm_utils.load_tokenizer(  # type: ignore[no-untyped-call]
            path, {"trust_remote_code": False}, eos_token_ids=field(config, "eos_token_id")
        )
    except Exception as error:
        raise ModelError(f"the tokenizer in {path} cannot be loaded: {error}") from error
    return tokenizer
