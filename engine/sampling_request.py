"""Parameters as clients write them in JSON: our names, and OpenAI's spellings of some."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from .errors import RequestError
from .sampling_ranges import CHECKS, MAX_LOGPROBS, ParameterError

_RENAMED = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "include_stop_str_in_output": "include_stop",
    "allowed_token_ids": "allowed_tokens",
}
_TRANSLATED = ("response_format", "top_logprobs")


def read_parameters(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for SamplingParams. A null value means the parameter's default.

    Raises RequestError for an unknown name, for one parameter given in two spellings, and for
    OpenAI's response_format or top_logprobs that cannot be read.
    """
    if not isinstance(mapping, Mapping):
        raise RequestError(f"parameters are {mapping!r}: they must be a mapping of names to values")
    parameters: dict[str, Any] = {}
    for spelling, value in mapping.items():
        if spelling not in CHECKS and spelling not in _RENAMED and spelling not in _TRANSLATED:
            raise RequestError(_unknown(spelling))
        name = _RENAMED.get(spelling, spelling)
        if value is None or spelling in _TRANSLATED:
            continue
        if name in parameters:
            raise RequestError(f"{name} is given twice, once as {spelling}: give it once")
        parameters[name] = value
    _read_logprobs(mapping.get("top_logprobs"), parameters)
    _read_response_format(mapping.get("response_format"), parameters)
    return parameters


def _unknown(spelling: object) -> str:
    names = [*CHECKS, *_RENAMED, *_TRANSLATED]
    nearest = get_close_matches(str(spelling), names, n=1, cutoff=0.0)[0]
    return f"there is no parameter {spelling!r}: did you mean {nearest!r}?"


def _read_logprobs(top: Any, parameters: dict[str, Any]) -> None:
    """OpenAI's pair: ``logprobs: true`` with ``top_logprobs: 5`` is our ``logprobs: 5``."""
    asked = parameters.get("logprobs")
    if top is not None:
        if asked is not True:
            allowed = "given beside logprobs: true (or give the number as logprobs)"
            raise ParameterError("top_logprobs", top, allowed)
        try:
            parameters["logprobs"] = CHECKS["logprobs"].accept(top)
        except (TypeError, ValueError):
            allowed = f"a whole number from 0 to {MAX_LOGPROBS}"
            raise ParameterError("top_logprobs", top, allowed) from None
    elif asked is True:
        parameters["logprobs"] = 0
    elif asked is False:
        del parameters["logprobs"]


def _read_response_format(value: Any, parameters: dict[str, Any]) -> None:
    """OpenAI's ``{"type": "json_schema", "json_schema": {"schema": ...}}`` and its siblings."""
    if value is None:
        return
    kind = value.get("type") if isinstance(value, Mapping) else None
    schema: Any = None
    if kind == "text":
        return
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        wrapped = value.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    if schema is None:
        allowed = (
            "{'type': 'json_schema', 'json_schema': {'schema': ...}}, or of type 'json_object' "
            "or 'text'"
        )
        raise ParameterError("response_format", value, allowed)
    if "json_schema" in parameters:
        raise RequestError("json_schema is given twice, once as response_format: give it once")
    parameters["json_schema"] = schema
