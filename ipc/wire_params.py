"""Sampling parameters on the wire: their names, the few that the broker reads, their encoding.

The engine's SamplingParams has the same names and judges the values; a broker and a client never
import it. A test holds the two lists together.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .limits import MAX_ARRAY, MAX_COUNT, MAX_SAMPLES, MAX_SECONDS, MAX_SEED
from .token_ids import pack_ids, unpack_ids

NAMES = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_tokens",
    "banned_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop",
    "ignore_eos",
    "n",
    "logprobs",
    "logprobs_mode",
    "prompt_logprobs",
    "priority",
    "deadline",
    "salt",
    "json_schema",
    "regex",
    "grammar",
)
ID_LISTS = ("allowed_tokens", "banned_tokens", "stop_token_ids")
DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """What the broker has to know of a request's parameters."""

    max_tokens: int
    samples: int
    priority: int
    deadline: float | None
    seed: int | None
    prompt_entries: int = 0  # of log-probabilities, for each token of the prompt


def read_terms(params: Mapping[str, Any]) -> Terms:
    """Return the terms in ``params``. Raises ValueError for an unknown name or a bad value."""
    for name in params:
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"there is no sampling parameter {name!r:.80}{hint}")
    deadline = params.get("deadline")
    if deadline is not None and (
        type(deadline) not in (int, float) or not 0 < deadline <= MAX_SECONDS
    ):
        raise ValueError(f"deadline is {deadline!r:.80}: it must be seconds above 0")
    likeliest = params.get("prompt_logprobs")
    if likeliest is not None:
        likeliest = _whole(params, "prompt_logprobs", 0, MAX_ARRAY, 0)
    return Terms(
        max_tokens=_whole(params, "max_tokens", 1, MAX_COUNT, DEFAULT_MAX_TOKENS),
        samples=_whole(params, "n", 1, MAX_SAMPLES, 1),
        priority=_whole(params, "priority", -MAX_COUNT, MAX_COUNT, 0),
        deadline=deadline,
        seed=None if params.get("seed") is None else _whole(params, "seed", 0, MAX_SEED, 0),
        prompt_entries=0 if likeliest is None else 1 + likeliest,
    )


def _whole(params: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r:.80}: it must be a whole number, {low} to {high}")
    return value


def to_wire(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``params`` as the wire carries them. Raises ValueError for an unknown name."""
    read_terms(params)
    wire: dict[str, Any] = {}
    for name, value in params.items():
        if value is None:
            continue
        if name in ID_LISTS and not isinstance(value, bytes):
            wire[name] = pack_ids(value)
        elif name == "logit_bias":
            wire[name] = {str(token): bias for token, bias in dict(value).items()}
        elif name == "json_schema" and not isinstance(value, str):
            wire[name] = json.dumps(value)
        else:
            wire[name] = list(value) if isinstance(value, tuple) else value
    return wire


def from_wire(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return wire parameters as arguments of the engine's SamplingParams."""
    arguments = {name: value for name, value in params.items() if value is not None}
    for name in ID_LISTS:
        value = arguments.get(name)
        if isinstance(value, bytes):
            if len(value) % 4:
                raise ValueError(f"{name} must be four bytes a token id")
            arguments[name] = unpack_ids(value)
    if isinstance(arguments.get("logit_bias"), Mapping):
        arguments["logit_bias"] = {
            int(token): bias for token, bias in arguments["logit_bias"].items()
        }
    return arguments
