"""What a user may ask of sampling and output, validated by name.

Importing this file costs nothing beyond the standard library, so clients may validate early.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import RequestError
from .sampling_ranges import CHECKS, ParameterError, check
from .sampling_request import read_parameters

__all__ = ["GENERATION_DEFAULTS", "ParameterError", "SamplingParams"]

GENERATION_DEFAULTS: Mapping[str, float] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What holds where neither the request nor the model's generation config says anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. None means: the model's generation config, else the default.

    The default temperature is 0.0 (greedy), as in mlx-lm, whose models and users these are: the
    same call gives the same text. vLLM's default is 1.0; a model whose generation config names a
    temperature, or says ``do_sample: true``, is sampled as it asks. Below 1e-5 is greedy.

    ``min_tokens``: end-of-sequence and stop ids are not picked among the first ``min_tokens``
    tokens, and a stop string counts only once that many tokens are there.
    ``seed``: with it an answer is reproducible; without it the engine draws one and reports it.
    ``logprobs``: how many of the likeliest tokens to report at each position, besides the token
    itself (0: only the token). ``logprobs_mode`` "raw" is the log-softmax of the model's logits;
    "processed" is after masks, bias, penalties, temperature, top-k, top-p and min-p.
    ``deadline``: seconds from submission after which the request ends. ``salt``: requests with
    different salts never share cached blocks. At most one of ``json_schema`` (JSON text, or the
    decoded schema), ``regex`` and ``grammar`` (Lark) constrains the output.

    Lists become tuples, a single stop string a tuple of one. Raises ParameterError.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: off
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
    logprobs_mode: Literal["raw", "processed"] = "raw"
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name in CHECKS:
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}"
            )
        constraints = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name)]
        if len(constraints) > 1:
            raise RequestError(
                f"{' and '.join(constraints)} are both set: at most one of json_schema, regex and "
                "grammar may constrain a request"
            )
        if self.allowed_tokens and set(self.allowed_tokens) <= set(self.banned_tokens or ()):
            raise RequestError(
                "banned_tokens bans every one of allowed_tokens: at least one must remain"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "SamplingParams":
        """Read parameters as decoded from JSON; OpenAI's spellings are understood too.

        Raises RequestError for an unknown name (naming the nearest valid one) or a bad value.
        """
        return cls(**read_parameters(mapping))

    def resolve(self, generation_config: Mapping[str, Any] | None = None) -> "SamplingParams":
        """Fill what is None from the model's generation config, then from GENERATION_DEFAULTS.

        ``do_sample`` decides the temperature where the config has none: true is 1.0. An explicit
        false makes it 0.0, whatever temperature stands beside it.
        """
        config = dict(generation_config or {})
        if config.get("do_sample") is False:
            config["temperature"] = 0.0
        elif config.get("do_sample") is True and config.get("temperature") is None:
            config["temperature"] = 1.0
        filled: dict[str, Any] = {}
        for name, default in GENERATION_DEFAULTS.items():
            if getattr(self, name) is not None:
                continue
            value = config.get(name)
            if value is None:
                filled[name] = default
            else:
                source = " (from the model's generation config)"
                filled[name] = check(name, value, source)
        return replace(self, **filled)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ParameterError if a token id named here is not one of the model's."""
        for name in ("logit_bias", "allowed_tokens", "banned_tokens", "stop_token_ids"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    allowed = f"made of token ids from 0 to {vocab_size - 1}"
                    raise ParameterError(name, token, allowed)
        if self.allowed_tokens is None and len(set(self.banned_tokens or ())) >= vocab_size:
            raise RequestError("banned_tokens bans the whole vocabulary: at least one must remain")
