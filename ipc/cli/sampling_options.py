"""The flags of the sampling parameters, for every command that decodes."""

import argparse
from pathlib import Path
from typing import Any


def text_or_file(value: str) -> str:
    """Return the flag's value, or what is in the file that ``@FILE`` names."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"cannot read {value[1:]}: {reason}") from None


def token_and_bias(value: str) -> tuple[int, float]:
    """Return the two numbers of ``ID=BIAS``."""
    token, _, bias = value.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} must be ID=BIAS, such as 17=-5") from None


_FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # flag, parameter, how argparse reads it
    ("--max-tokens", "max_tokens", {"type": int, "help": "most tokens to generate"}),
    ("--min-tokens", "min_tokens", {"type": int, "help": "fewest before anything ends the answer"}),
    ("--temperature", "temperature", {"type": float, "help": "0: the likeliest token every time"}),
    ("--top-p", "top_p", {"type": float, "help": "sample from this much probability"}),
    ("--top-k", "top_k", {"type": int, "help": "sample from this many tokens"}),
    ("--min-p", "min_p", {"type": float, "help": "least probability, relative to the likeliest's"}),
    (
        "--repetition-penalty",
        "repetition_penalty",
        {"type": float, "help": "divides what already occurred; 1 is none"},
    ),
    (
        "--presence-penalty",
        "presence_penalty",
        {"type": float, "help": "taken once from what was generated before"},
    ),
    (
        "--frequency-penalty",
        "frequency_penalty",
        {"type": float, "help": "taken for every time it was generated before"},
    ),
    (
        "--logit-bias",
        "logit_bias",
        {"type": token_and_bias, "action": "append", "metavar": "ID=BIAS", "help": "repeatable"},
    ),
    (
        "--stop",
        "stop",
        {"action": "append", "metavar": "TEXT", "help": "text that ends the answer; repeatable"},
    ),
    (
        "--stop-token-id",
        "stop_token_ids",
        {"type": int, "action": "append", "metavar": "ID", "help": "the same for a token id"},
    ),
    (
        "--include-stop",
        "include_stop",
        {"action": "store_true", "help": "keep the stop text in the answer"},
    ),
    (
        "--ignore-eos",
        "ignore_eos",
        {"action": "store_true", "help": "go on behind the model's end of sequence"},
    ),
    (
        "--deadline",
        "deadline",
        {"type": float, "metavar": "SECONDS", "help": "end the answer after this time"},
    ),
    ("--salt", "salt", {"help": "requests with different salts share no cache"}),
    (
        "--json-schema",
        "json_schema",
        {"type": text_or_file, "metavar": "JSON|@FILE", "help": "the answer satisfies this schema"},
    ),
    ("--regex", "regex", {"help": "the answer matches this regular expression"}),
    (
        "--grammar",
        "grammar",
        {"type": text_or_file, "metavar": "LARK|@FILE", "help": "the answer is of this grammar"},
    ),
)
_BATCH_FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--n", "n", {"type": int, "help": "how many answers to sample"}),
    (
        "--logprobs",
        "logprobs",
        {"type": int, "metavar": "K", "help": "report the K likeliest tokens at each position"},
    ),
    (
        "--prompt-logprobs",
        "prompt_logprobs",
        {"type": int, "metavar": "K", "help": "the same for the tokens of the prompt"},
    ),
    ("--priority", "priority", {"type": int, "help": "the larger runs first"}),
)


def add_sampling_arguments(parser: argparse.ArgumentParser, *, batch: bool = False) -> None:
    """Declare the flags; ``batch`` adds those that make no sense for one streamed answer."""
    title = "sampling" + (" (for lines that do not say themselves)" if batch else "")
    described = "What is left out comes from the model's generation config, else: greedy."
    group = parser.add_argument_group(title, described)
    for flag, name, options in (*_FLAGS, *(_BATCH_FLAGS if batch else ())):
        group.add_argument(flag, dest=name, default=argparse.SUPPRESS, **options)


def given_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return SamplingParams' arguments for the flags that were given."""
    names = {name for _flag, name, _options in (*_FLAGS, *_BATCH_FLAGS)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return given
