"""Checks of values that arrived from the wire: each returns the value, or raises ValueError.

The message of the error says what the value must be; the codec puts the field's name before it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .limits import (
    ID_BYTES,
    MAX_ARRAY,
    MAX_COUNT,
    MAX_FRAME_BYTES,
    MAX_MAP,
    MAX_SECONDS,
)
from .messages import Logprob

Check = Callable[[Any], Any]


def text(max_bytes: int, *, min_bytes: int = 0) -> Check:
    """Accept a string of at most ``max_bytes`` bytes of UTF-8."""

    def check(value: Any) -> str:
        if type(value) is not str:
            raise ValueError("must be a string")
        # four bytes a character at most: the exact count is needed only near the limit
        if len(value) * 4 > max_bytes and len(value.encode()) > max_bytes:
            raise ValueError(f"must be at most {max_bytes} bytes long")
        if len(value) < min_bytes:
            raise ValueError("must not be empty")
        return value

    return check


def one_of(*allowed: str) -> Check:
    """Accept one of a few words."""

    def check(value: Any) -> str:
        if type(value) is not str or value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return check


def whole(low: int, high: int) -> Check:
    """Accept an integer within bounds; a bool is none."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


count = whole(0, MAX_COUNT)


def number(value: Any) -> float:
    """Accept a finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("must be a finite number")
    return float(value)


def seconds(value: Any) -> float:
    """Accept a duration."""
    duration = number(value)
    if not 0 <= duration <= MAX_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_SECONDS:.0f} seconds")
    return duration


def flag(value: Any) -> bool:
    """Accept true or false."""
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def items(check: Check, *, most: int = MAX_ARRAY, least: int = 0) -> Check:
    """Accept an array whose every element passes ``check``; return a tuple."""

    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or not least <= len(value) <= most:
            raise ValueError(f"must be an array of {least} to {most} elements")
        return tuple([check(item) for item in value])

    return check_all


def counts(value: Any) -> Mapping[str, int]:
    """Accept a map from names to counts."""
    if type(value) is not dict or len(value) > MAX_MAP:
        raise ValueError(f"must be a map of at most {MAX_MAP} entries")
    for name, item in value.items():
        try:
            count(item)
        except ValueError as error:
            raise ValueError(f"[{name!r}] {error}") from None
    return value


def figures(value: Any) -> Mapping[str, Any]:
    """Accept a map from names to numbers, strings or arrays of numbers."""
    if type(value) is not dict or len(value) > MAX_MAP:
        raise ValueError(f"must be a map of at most {MAX_MAP} entries")
    for name, item in value.items():
        simple = item is None or type(item) in (int, float, str, bool)
        if not simple and not (type(item) is list and all(type(i) in (int, float) for i in item)):
            raise ValueError(f"[{name!r}] must be a number, a string or an array of numbers")
    return value


def parameters(value: Any) -> Mapping[str, Any]:
    """Accept sampling parameters as far as their shape goes; their names are judged later."""
    if type(value) is not dict or len(value) > MAX_MAP:
        raise ValueError(f"must be a map of at most {MAX_MAP} entries")
    for name, item in value.items():
        if type(item) is list:
            plain = all(type(element) in (int, float, str) for element in item)
        elif type(item) is dict:
            plain = all(type(element) in (int, float) for element in item.values())
        else:
            plain = item is None or type(item) in (int, float, str, bool, bytes)
        if not plain:
            raise ValueError(f"[{name!r}] must be a number, a string, or a flat array or map")
    return value


def logprobs(value: Any) -> tuple[Logprob, ...]:
    """Accept an array of [id, logprob, array of [id, logprob]]."""
    if type(value) is not list or len(value) > MAX_ARRAY:
        raise ValueError(f"must be an array of at most {MAX_ARRAY} elements")
    return tuple([_logprob(entry) for entry in value])


def prompt_logprobs(value: Any) -> tuple[Logprob | None, ...]:
    """Accept the same, with nil for tokens that have none."""
    if type(value) is not list or len(value) > MAX_ARRAY:
        raise ValueError(f"must be an array of at most {MAX_ARRAY} elements")
    return tuple([None if entry is None else _logprob(entry) for entry in value])


def _logprob(entry: Any) -> Logprob:
    if type(entry) is not list or len(entry) != 3 or type(entry[2]) is not list:
        raise ValueError("must be made of [id, logprob, array of [id, logprob]]")
    return (*_scored(entry[:2]), tuple([_scored(pair) for pair in entry[2]]))


def _scored(pair: Any) -> tuple[int, float]:
    if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int:
        raise ValueError("must be made of [id, logprob, array of [id, logprob]]")
    if type(pair[1]) not in (int, float) or math.isnan(pair[1]):
        raise ValueError("must have numbers for log-probabilities")
    return pair[0], float(pair[1])


def token_ids(frame: bytes) -> bytes:
    """Accept an attachment: raw token ids."""
    if len(frame) > MAX_FRAME_BYTES:
        raise ValueError(f"must be at most {MAX_FRAME_BYTES} bytes long")
    if len(frame) % ID_BYTES:
        raise ValueError(f"must be {ID_BYTES} bytes a token id")
    return frame


def record(cls: type[Any], required: dict[str, Check], optional: dict[str, Check]) -> Check:
    """Accept a map that becomes an instance of ``cls``."""

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError("must be made of maps")
        return cls(**read_fields(value, required, optional))

    return check


def read_fields(
    header: dict[str, Any], required: dict[str, Check], optional: dict[str, Check]
) -> dict[str, Any]:
    """Return the fields that were given, each as its check returns it; nil counts as not given."""
    values = {}
    try:
        for name, check in required.items():
            values[name] = check(header[name])
        for name, check in optional.items():
            if name in header and header[name] is not None:
                values[name] = check(header[name])
    except KeyError:
        raise ValueError(f"field {name!r} is missing") from None
    except ValueError as error:
        raise ValueError(f"field {name!r} {error}") from None
    return values
