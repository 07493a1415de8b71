"""Reads the body of an OpenAI batch line: the prompt, and the sampling parameters as written.

Our parameters are accepted beside theirs (top_k, min_p, regex ...). What has no effect here (user,
metadata, store ...) is accepted; what would change the answer and is not served is refused.
"""

from collections.abc import Mapping
from typing import Any

from .bad_request_error import BadRequestError
from .batch_request import LineFormat, Prompt
from .conversation import check_messages, check_text

URLS: dict[str, LineFormat] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}

WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    | {"stream_options", "parallel_tool_calls", "prompt_cache_retention"}
)
NEUTRAL: dict[str, tuple[Any, ...]] = {  # not served: only the values that ask for nothing pass
    "stream": (False,),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


def read_body(line_format: LineFormat, body: Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
    """Return the prompt and the parameters; raise BadRequestError for what is wrong with either."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, neutral in NEUTRAL.items():
        if name in given and given[name] not in neutral:
            raise BadRequestError("unsupported", f'"{name}" is not supported; leave it out')
    prompt_name = "messages" if line_format == "chat" else "prompt"
    parameters = {
        name: value
        for name, value in given.items()
        if name not in WITHOUT_EFFECT and name not in NEUTRAL and name != prompt_name
    }
    prompt = _messages(given) if line_format == "chat" else _prompt(given)
    return prompt, parameters


def _messages(given: Mapping[str, Any]) -> Prompt:
    if "messages" not in given:
        hint = "; a body with a prompt goes to /v1/completions" if "prompt" in given else ""
        message = f'"messages" is missing: a list of {{"role", "content"}}{hint}'
        raise BadRequestError("missing_field", message)
    return check_messages(given["messages"])


def _prompt(given: Mapping[str, Any]) -> Prompt:
    if "prompt" not in given:
        message = '"prompt" is missing: a text or a list of token ids'
        raise BadRequestError("missing_field", message)
    prompt = given["prompt"]
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            message = f'"prompt" is a list of {len(prompt)} prompts; give each a line of its own'
            raise BadRequestError("unsupported", message)
        prompt = prompt[0]
    return check_text(prompt)
