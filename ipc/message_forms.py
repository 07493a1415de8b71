"""How each type of message looks: the fields of its header, its attachments, its size."""

from dataclasses import dataclass
from typing import Any

from . import limits, messages
from .schema import (
    Check,
    count,
    counts,
    figures,
    flag,
    items,
    logprobs,
    one_of,
    parameters,
    prompt_logprobs,
    record,
    seconds,
    text,
    whole,
)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How one type looks: required and optional header fields, attachments, longest header."""

    cls: type[Any]
    required: dict[str, Check]
    optional: dict[str, Check]
    attachments: tuple[str, ...] = ()
    header_bytes: int = limits.MAX_HEADER_BYTES


identifier = text(limits.MAX_ID_BYTES, min_bytes=1)
_name = text(limits.MAX_NAME_BYTES, min_bytes=1)
_label = text(limits.MAX_LABEL_BYTES)
_reason = text(limits.MAX_REASON_BYTES)
_error = text(limits.MAX_ERROR_BYTES)
_prompt = text(limits.MAX_PROMPT_HEADER_BYTES)
_seed = whole(0, limits.MAX_SEED)
_models = items(_label, most=limits.MAX_MODELS)
_window = whole(1, limits.MAX_WINDOW)
_index = whole(0, limits.MAX_SAMPLES - 1)
_run_states = items(
    record(
        messages.RunState,
        {
            "run": identifier,
            "tenant": _label,
            "client": _name,
            "id": identifier,
            "first": count,
            "seq": count,
            "tokens": count,
            "seed": _seed,
        },
        {},
    )
)
_conversation = items(
    record(messages.ChatMessage, {"role": _label, "content": _prompt}, {}),
)
_pieces = items(
    record(
        messages.Piece,
        {"index": _index, "count": count, "text": text(limits.MAX_HEADER_BYTES)},
        {
            "logprobs": logprobs,
            "reason": _reason,
            "usage": counts,
            "prompt_logprobs": prompt_logprobs,
            "prompt_start": count,
        },
    ),
    least=1,
    most=limits.MAX_SAMPLES,
)
_samples = items(
    record(
        messages.SampleEnd,
        {"index": _index, "reason": _reason},
        {"usage": counts, "error": _error},
    ),
    most=limits.MAX_SAMPLES,
)
_ask_fields: dict[str, Check] = {
    "text": _prompt,
    "messages": _conversation,
    "model": _label,
    "params": parameters,
    "window": _window,
    "linger": seconds,
}
_kind = one_of("text", "messages", "tokens")
_prompt_frames = ("prompt_ids", "emitted_ids")
_stream: dict[str, Check] = {"id": identifier, "seq": count}

FORMS: dict[str, MessageForm] = {
    "hello": MessageForm(
        messages.Hello,
        {"role": one_of("client", "worker"), "name": _name},
        {"models": _models, "capacity": count, "runs": _run_states, "bundles": flag},
    ),
    "welcome": MessageForm(
        messages.Welcome,
        {"epoch": identifier, "heartbeat": seconds},
        {"models": _models, "bundles": flag},
    ),
    "submit": MessageForm(
        messages.Submit,
        {"id": identifier, "kind": _kind},
        {**_ask_fields, "resume": flag, "again": flag, "received": count, "run": identifier},
        _prompt_frames,
        limits.MAX_PROMPT_HEADER_BYTES - limits.RUN_HEADER_BYTES,
    ),
    "run": MessageForm(
        messages.Run,
        {"run": identifier, "tenant": _label, "client": _name, "id": identifier, "kind": _kind},
        {**_ask_fields, "window": count, "seq": count},
        _prompt_frames,
        limits.MAX_PROMPT_HEADER_BYTES,
    ),
    "accepted": MessageForm(messages.Accepted, {"id": identifier, "seed": _seed}, {}),
    "chunk": MessageForm(
        messages.Chunk,
        {**_stream, "position": count, "pieces": _pieces},
        {"run": identifier},
        ("ids",),
    ),
    "done": MessageForm(
        messages.Done, {**_stream, "seed": _seed, "samples": _samples}, {"run": identifier}
    ),
    "error": MessageForm(
        messages.Error,
        {"code": _reason, "message": _error, "retryable": flag},
        {
            "id": identifier,
            "seq": count,
            "retry_after": seconds,
            "progress": count,
            "run": identifier,
        },
    ),
    "credit": MessageForm(
        messages.Credit,
        {"id": identifier, "received": count, "tokens": count},
        {"resend": flag, "run": identifier},
    ),
    "cancel": MessageForm(messages.Cancel, {"id": identifier}, {"run": identifier}),
    "ack": MessageForm(messages.Ack, {"id": identifier}, {"run": identifier}),
    "ping": MessageForm(messages.Ping, {}, {"nonce": count}),
    "pong": MessageForm(messages.Pong, {}, {"nonce": count}),
    "stats": MessageForm(messages.Stats, {}, {"stats": figures, "workers": items(figures)}),
    "drain": MessageForm(messages.Drain, {}, {"reason": _reason, "leaving": flag}),
}
TYPE_OF = {form.cls: name for name, form in FORMS.items()}
