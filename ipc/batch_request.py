"""One request of a batch, and a line that cannot become one."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from engine.sampling_params import SamplingParams

from .bad_request_error import FaultCode

LineFormat = Literal["octavo", "chat", "completion"]
"""Which shape a line has, and so its answer: ours, or OpenAI's for one of its two urls."""

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line that asks for something sensible, as far as its text alone can tell."""

    line: int  # from 1
    custom_id: str
    format: LineFormat
    prompt: Prompt
    params: SamplingParams  # the job's defaults included
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        asked = [self.format, self.prompt, given_parameters(self.params)]
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "digest", digest_of(text.encode()))


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that becomes an error record: why, and as much of its identity as is known."""

    line: int
    code: FaultCode
    message: str
    digest: str
    custom_id: str | None = None
    format: LineFormat | None = None  # None: the line does not show which it was meant to be


def given_parameters(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters that differ from the defaults."""
    values = {each.name: getattr(params, each.name) for each in fields(params)}
    defaults = SamplingParams()
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def digest_of(content: bytes) -> str:
    """Return 16 hexadecimal digits that tell this content from another."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
