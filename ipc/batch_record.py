"""The record that answers one line: ours, or OpenAI's for a line in their format.

Every record has ``id`` (``batch_req_`` and the digest of what was asked), ``custom_id`` and
``error``: null, or an object with ``code``, ``message`` and ``line``.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .batch_answer import BatchAnswer, Choice
from .batch_request import BadLine, BatchRequest

if TYPE_CHECKING:
    from engine.answer import TokenLogprob

ID_PREFIX = "batch_req_"

TokenText = Callable[[int], str]
"""The text of one token id."""

_OPENAI_REASONS = {"eos": "stop"}  # theirs knows no other word for either


def error_record(request: BatchRequest | BadLine, code: str, message: str) -> dict[str, Any]:
    """Return the record of a line that has no answer."""
    record: dict[str, Any] = {"id": ID_PREFIX + request.digest, "custom_id": request.custom_id}
    if request.format != "octavo":
        record["response"] = None
    record["error"] = {"code": code, "message": message, "line": request.line}
    return record


def answer_record(
    answer: BatchAnswer, *, model: str, created: int, token_text: TokenText
) -> dict[str, Any]:
    """Return the record of an answer that is complete; ``created`` in seconds since 1970."""
    request = answer.request
    record: dict[str, Any] = {"id": ID_PREFIX + request.digest, "custom_id": request.custom_id}
    if request.format == "octavo":
        record["model"] = model
        record["choices"] = [_own_choice(choice) for choice in answer.choices]
        if answer.prompt_logprobs is not None:
            record["prompt_logprobs"] = [
                None if entry is None else _own_logprob(entry) for entry in answer.prompt_logprobs
            ]
        record["usage"] = answer.usage()
        record["seed"] = answer.seed
    else:
        chat = request.format == "chat"
        make_choice = _chat_choice if chat else _completion_choice
        body: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + request.digest,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
            "choices": [make_choice(choice, token_text) for choice in answer.choices],
            "usage": _openai_usage(answer),
        }
        if answer.prompt_logprobs is not None:  # OpenAI's has no such field; entries as in chat
            body["prompt_logprobs"] = [
                None if entry is None else _chat_logprob(entry, token_text)
                for entry in answer.prompt_logprobs
            ]
        response = {"status_code": 200, "request_id": answer.request_id, "body": body}
        record["response"] = response
    record["error"] = None
    return record


def model_of(record: dict[str, Any]) -> str | None:
    """Return the name of the model that a record's answer came from; None in an error record."""
    try:
        model = (record if "model" in record else record["response"]["body"])["model"]
    except (KeyError, TypeError):
        return None
    return model if isinstance(model, str) else None


def _own_choice(choice: Choice) -> dict[str, Any]:
    made: dict[str, Any] = {
        "index": choice.index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
    }
    if choice.logprobs is not None:
        made["logprobs"] = [_own_logprob(entry) for entry in choice.logprobs]
    return made


def _own_logprob(entry: "TokenLogprob") -> dict[str, Any]:
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": entry.top}


def _chat_choice(choice: Choice, token_text: TokenText) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        content = [_chat_logprob(entry, token_text) for entry in choice.logprobs]
        logprobs = {"content": content, "refusal": None}
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": _openai_reason(choice),
    }


def _chat_logprob(entry: "TokenLogprob", token_text: TokenText) -> dict[str, Any]:
    def named(token_id: int, logprob: float) -> dict[str, Any]:
        text = token_text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [named(token_id, logprob) for token_id, logprob in entry.top]
    return {**named(entry.token_id, entry.logprob), "top_logprobs": top}


def _completion_choice(choice: Choice, token_text: TokenText) -> dict[str, Any]:
    logprobs: dict[str, Any] | None = None
    if choice.logprobs is not None:
        tokens = [token_text(entry.token_id) for entry in choice.logprobs]
        offsets = list(accumulate(map(len, tokens), initial=0))[:-1]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in choice.logprobs],
            "top_logprobs": [
                {token_text(token_id): logprob for token_id, logprob in entry.top}
                for entry in choice.logprobs
            ],
            "text_offset": offsets,
        }
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": _openai_reason(choice),
    }


def _openai_reason(choice: Choice) -> str | None:
    return _OPENAI_REASONS.get(choice.finish_reason or "", choice.finish_reason)


def _openai_usage(answer: BatchAnswer) -> dict[str, Any]:
    usage = answer.usage()
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
    }
