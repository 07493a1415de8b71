"""What a user may ask of sampling and output, validated by name."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. None means: the model's generation config, else the default."""

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_tokens: tuple[int, ...] | None = None
    banned_tokens: tuple[int, ...] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
