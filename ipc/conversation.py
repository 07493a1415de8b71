"""Checks that a prompt, or the messages of a conversation, has the shape an engine takes."""

import json
from collections.abc import Mapping
from typing import Any

from .bad_request_error import BadRequestError


def check_text(prompt: Any) -> str | tuple[int, ...]:
    """Return a prompt that is a text or a list of token ids; raise BadRequestError if it is not."""
    if isinstance(prompt, str):
        _refuse_half_characters("prompt", prompt)
        if not prompt:
            raise BadRequestError("bad_value", '"prompt" is empty; at least one token is needed')
        return prompt
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        if not prompt:
            raise BadRequestError("bad_value", '"prompt" is empty; at least one token is needed')
        return tuple(prompt)
    shown = _shown(prompt)
    message = f'"prompt" must be a string or a list of token ids, not {shown}'
    raise BadRequestError("wrong_type", message)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages, every content one text; raise BadRequestError naming the fault."""
    if not isinstance(messages, list) or not messages:
        message = '"messages" must be a list of at least one {"role", "content"}'
        raise BadRequestError("wrong_type", f"{message}, not {_shown(messages)}")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: Any) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        fault = f'{where} must be an object with "role" and "content", not {_shown(message)}'
        raise BadRequestError("wrong_type", fault)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        fault = f'{where} needs a "role": "system", "user" or "assistant", not {_shown(role)}'
        raise BadRequestError("missing_field" if role is None else "wrong_type", fault)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            _text_of(f"{where}.content[{at}]", part) for at, part in enumerate(content)
        )
    if not isinstance(content, str):
        fault = f'{where} needs a "content" that is a text, not {_shown(content)}'
        raise BadRequestError("missing_field" if content is None else "wrong_type", fault)
    _refuse_half_characters(f"{where}.content", content)
    return {**message, "content": content}


def _text_of(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind != "text":
        fault = f'{where} is of type "{kind}"; only "text" is supported'
        raise BadRequestError("unsupported", fault)
    fault = f'{where} must be {{"type": "text", "text": ...}}, not {_shown(part)}'
    raise BadRequestError("wrong_type", fault)


def _refuse_half_characters(where: str, text: str) -> None:
    """JSON can spell half of a surrogate pair; no tokenizer can read it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fault = f'"{where}" has half a character ({text[error.start]!r}) at index {error.start}'
        raise BadRequestError("bad_value", f"{fault}; a surrogate comes in pairs") from None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
