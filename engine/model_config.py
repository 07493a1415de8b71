"""What a model's configuration files say about running it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .checkpoint import read_json
from .errors import ModelError

logger = logging.getLogger(__name__)

CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def field(config: Mapping[str, Any], name: str) -> Any:
    """Return ``config[name]``, or that of its nested ``text_config``; None if neither has it."""
    text_config = config.get("text_config")
    value = config.get(name)
    if value is None and isinstance(text_config, Mapping):
        value = text_config.get(name)
    return value


def read_vocab_size(model: Any, config: Mapping[str, Any], tokenizer: TokenizerWrapper) -> int:
    """Return how many logits the model gives for a position."""
    stated = field(config, "vocab_size") or getattr(model.args, "vocab_size", None)
    return int(stated or len(tokenizer))


def read_max_context(config: Mapping[str, Any]) -> int | None:
    """Return how many positions the model was made for, scaled rotations included."""
    stated = next((value for name in CONTEXT_FIELDS if (value := field(config, name))), None)
    if stated is None:
        logger.info("config.json states no context length; memory alone bounds it")
        return None
    scaling = field(config, "rope_scaling") or field(config, "rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = float(scaling.get("factor") or 1.0)
    if kind == "yarn" and scaling.get("original_max_position_embeddings"):
        return max(int(stated), int(scaling["original_max_position_embeddings"] * factor))
    return int(stated * factor) if kind == "linear" else int(stated)


def read_eos_ids(
    name: str, config: Mapping[str, Any], tokenizer: TokenizerWrapper
) -> frozenset[int]:
    """Return the ids that end an answer: the config's and the tokenizer's."""
    stated = field(config, "eos_token_id")
    listed = [stated] if isinstance(stated, int) else stated or []
    eos_ids = frozenset(listed) | frozenset(tokenizer.eos_token_ids)
    if not eos_ids:
        logger.warning("%s names no end-of-sequence token: answers end at max_tokens", name)
    return eos_ids


def read_sampling_defaults(path: Path) -> dict[str, float]:
    """Return generation_config.json's sampling fields; greedy where it says do_sample false."""
    file = path / "generation_config.json"
    if not file.exists():
        return {}
    stated = read_json(file)
    if stated.get("do_sample") is False:
        return {"temperature": 0.0}
    defaults = {name: stated[name] for name in SAMPLING_FIELDS if stated.get(name) is not None}
    for name, value in defaults.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{file}: {name} is {value!r}; it must be a number")
    return defaults
