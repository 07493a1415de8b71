"""The range of every sampling parameter, in words and as a check that also converts."""

import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import RequestError

MAX_LOGPROBS = 128
MAX_SAMPLES = 1024
_MAX_COUNT = 2**31 - 1


class ParameterError(RequestError):
    """A parameter has a value outside its range. Says which, the value, and the range."""

    def __init__(self, name: str, value: object, allowed: str, source: str = "") -> None:
        super().__init__(f"{name} is {value!r}{source}: it must be {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Check:
    """``accept`` returns the value converted, or raises; ``allowed`` says what it accepts."""

    accept: Callable[[object], object]
    allowed: str

    def or_none(self) -> "Check":
        """Return the same check that lets None through."""
        return Check(lambda value: None if value is None else self.accept(value), self.allowed)


def _integer(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and value.is_integer():  # JSON writers turn 5 into 5.0
        return int(value)
    return operator.index(value)  # type: ignore[arg-type]  # a TypeError is what is wanted


def _number(value: object) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole(low: int, high: int, allowed: str) -> Check:
    def accept(value: object) -> int:
        number = _integer(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return Check(accept, allowed)


def _real(within: Callable[[float], bool], allowed: str) -> Check:
    def accept(value: object) -> float:
        number = _number(value)
        if not within(number):
            raise ValueError
        return number

    return Check(accept, allowed)


def _top_k(value: object) -> int:
    number = _integer(value)
    if not -1 <= number <= _MAX_COUNT:
        raise ValueError
    return max(number, 0)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not _string(value):
        raise ValueError
    return _string(value)


def _token_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    tokens = tuple(_integer(token) for token in value)  # type: ignore[attr-defined]
    if any(not 0 <= token <= _MAX_COUNT for token in tokens):
        raise ValueError
    return tokens


def _some_token_ids(value: object) -> tuple[int, ...]:
    tokens = _token_ids(value)
    if not tokens:
        raise ValueError
    return tokens


def _stop(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, bytes | Mapping):
        raise TypeError
    return tuple(_text(stop) for stop in value)  # type: ignore[attr-defined]


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    biases = {}
    for token, bias in value.items():
        # JSON's names are strings
        token_id = int(token) if isinstance(token, str) else _integer(token)
        if not 0 <= token_id <= _MAX_COUNT or not -100 <= _number(bias) <= 100:
            raise ValueError
        biases[token_id] = _number(bias)
    return biases


def _json_schema(value: object) -> str:
    if isinstance(value, Mapping | bool):
        return json.dumps(value)
    return _text(value)


def _logprobs_mode(value: object) -> str:
    if value not in ("raw", "processed"):
        raise ValueError
    return _string(value)


_count = _whole(1, _MAX_COUNT, f"a whole number from 1 to {_MAX_COUNT}")
_penalty = _real(lambda number: -2 <= number <= 2, "a number from -2 to 2")
_top_logprobs = _whole(0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}, or None")
_tokens = "a list of token ids (whole numbers from 0)"

CHECKS: Mapping[str, Check] = {
    "max_tokens": _count,
    "min_tokens": _whole(0, _MAX_COUNT, f"a whole number from 0 to {_MAX_COUNT}"),
    "temperature": _real(
        lambda number: 0 <= number <= 100, "a number from 0 (greedy) to 100"
    ).or_none(),
    "top_p": _real(lambda number: 0 < number <= 1, "a number above 0, at most 1 (off)").or_none(),
    "top_k": Check(_top_k, f"a whole number from 1 to {_MAX_COUNT}, or 0 or -1 (off)").or_none(),
    "min_p": _real(lambda number: 0 <= number <= 1, "a number from 0 (off) to 1").or_none(),
    "repetition_penalty": _real(
        lambda number: 0 < number <= 100, "a number above 0, at most 100; 1 is off"
    ).or_none(),
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "logit_bias": Check(
        _logit_bias, "a mapping from token ids (whole numbers from 0) to numbers from -100 to 100"
    ).or_none(),
    "allowed_tokens": Check(_some_token_ids, f"{_tokens} with at least one, or None").or_none(),
    "banned_tokens": Check(_token_ids, _tokens).or_none(),
    "seed": _whole(0, 2**64 - 1, "a whole number from 0 to 2**64 - 1, or None").or_none(),
    "stop": Check(_stop, "a string or a list of strings, none of them empty"),
    "stop_token_ids": Check(_token_ids, _tokens),
    "include_stop": Check(_flag, "true or false"),
    "ignore_eos": Check(_flag, "true or false"),
    "n": _whole(1, MAX_SAMPLES, f"a whole number from 1 to {MAX_SAMPLES}"),
    "logprobs": _top_logprobs.or_none(),
    "prompt_logprobs": _top_logprobs.or_none(),
    "logprobs_mode": Check(_logprobs_mode, "'raw' or 'processed'"),
    "priority": _whole(-_MAX_COUNT, _MAX_COUNT, f"a whole number, at most {_MAX_COUNT} either way"),
    "deadline": _real(lambda number: number > 0, "a number of seconds above 0, or None").or_none(),
    "salt": Check(_string, "a string"),
    "json_schema": Check(_json_schema, "a JSON schema, as JSON text or decoded").or_none(),
    "regex": Check(_text, "a regular expression that is not empty").or_none(),
    "grammar": Check(_text, "a Lark grammar that is not empty").or_none(),
}


def check(name: str, value: object, source: str = "") -> object:
    """Return ``value`` converted for the parameter ``name``, or raise ParameterError.

    ``source`` says in the message where the value came from, if not from the request.
    """
    try:
        return CHECKS[name].accept(value)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(name, value, CHECKS[name].allowed, source) from None
