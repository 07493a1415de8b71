"""Frames to messages and back. Everything is bounded before it is decoded; nothing is trusted.

A message is a header (one msgpack map) and the attachments its type fixes. ``decode`` raises
CodecError and nothing else, whatever bytes it is given.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

import msgpack

from . import limits, messages
from .chunk_codec import read_chunk, write_chunk
from .message_forms import FORMS, TYPE_OF, MessageForm, identifier
from .messages import Message
from .schema import read_fields, token_ids


class CodecError(ValueError):
    """Bytes that are no message; ``code`` is the error code to answer with.

    ``request_id`` and ``run`` are the ids of what the message was about, as far as they can be
    read.
    """

    def __init__(self, message: str, *, code: str = "bad_message"):
        super().__init__(message)
        self.code = code
        self.request_id: str | None = None
        self.run: str | None = None


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError("msgpack ext types are not used here")


def encode(message: Message) -> list[bytes]:
    """Return the frames of ``message``. Fields that have their default value are left out."""
    if type(message) is messages.Chunk:
        quickly = write_chunk(message)
        if quickly is not None:
            return quickly
    return encode_generally(message)


def encode_generally(message: Message) -> list[bytes]:
    """Do what ``encode`` does, by the form of any message."""
    kind = TYPE_OF[type(message)]
    form = FORMS[kind]
    header = {"v": limits.PROTOCOL_VERSION, "type": kind, **_plain(message, form.attachments)}
    frames = [cast(bytes, msgpack.packb(header))]
    frames += [getattr(message, name) for name in form.attachments]
    if len(frames[0]) > form.header_bytes:
        raise CodecError(
            f"{kind} has a header of {len(frames[0])} bytes; at most {form.header_bytes} are sent"
        )
    for frame in frames[1:]:
        token_ids(frame)
    return frames


@cache
def _defaults(cls: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(cls))


def _plain(record: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a message or a part of one as what msgpack encodes."""
    values = {}
    for name, default in _defaults(record.__class__):
        value = getattr(record, name)
        if name in leave_out or value is default or value == default:
            continue
        if type(value) is tuple and value and is_dataclass(value[0]):
            value = [_plain(part) for part in value]
        values[name] = value
    return values


def decode(frames: Sequence[bytes], accept: Sequence[type[Any]]) -> Message:
    """Return the message that ``frames`` hold, if it is one of the types in ``accept``.

    Raises CodecError, whatever the bytes are.
    """
    if messages.Chunk in accept:
        chunk = read_chunk(frames)
        if chunk is not None:
            return chunk
    return decode_generally(frames, accept)


def decode_generally(frames: Sequence[bytes], accept: Sequence[type[Any]]) -> Message:
    """Do what ``decode`` does, by the form of any message."""
    if not 1 <= len(frames) <= limits.MAX_FRAMES:
        raise CodecError(f"a message has 1 to {limits.MAX_FRAMES} frames, not {len(frames)}")
    header = unpack_header(frames[0])
    try:
        return _read(header, frames, accept)
    except ValueError as error:
        refusal = (
            error
            if isinstance(error, CodecError)
            else CodecError(f"in {header.get('type')!s:.32}: {error}")
        )
        refusal.request_id = _readable_id(header.get("id"))
        refusal.run = _readable_id(header.get("run"))
        raise refusal from None


def _read(header: dict[str, Any], frames: Sequence[bytes], accept: Sequence[type[Any]]) -> Message:
    form = _form(header, accept)
    if len(frames[0]) > form.header_bytes:
        raise ValueError(f"the header is longer than {form.header_bytes} bytes")
    if len(frames) != 1 + len(form.attachments):
        raise ValueError(f"it has {1 + len(form.attachments)} frames, not {len(frames)}")
    values = read_fields(header, form.required, form.optional)
    for name, frame in zip(form.attachments, frames[1:], strict=True):
        values[name] = token_ids(frame)
    message: Message = form.cls(**values)
    _check_whole(message)
    return message


def _readable_id(value: Any) -> str | None:
    try:
        return cast(str, identifier(value))
    except ValueError:
        return None


def unpack_header(frame: bytes) -> dict[str, Any]:
    """Return the map that a header is, within the limits of any. Raises CodecError."""
    if len(frame) > limits.MAX_PROMPT_HEADER_BYTES:
        raise CodecError(f"the header is longer than {limits.MAX_PROMPT_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=limits.MAX_PROMPT_HEADER_BYTES,
            max_bin_len=limits.MAX_HEADER_BYTES,
            max_array_len=limits.MAX_ARRAY,
            max_map_len=limits.MAX_MAP,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises a dozen kinds; none may pass
        raise CodecError(f"the header is no msgpack map within the limits ({error})") from None
    if type(header) is not dict:
        raise CodecError("the header must be a msgpack map")
    return cast(dict[str, Any], header)


def _form(header: dict[str, Any], accept: Sequence[type[Any]]) -> MessageForm:
    version = header.get("v")
    if type(version) is not int or version != limits.PROTOCOL_VERSION:
        raise CodecError(
            f"version {version!s:.16} is not spoken here, only {limits.PROTOCOL_VERSION}",
            code="unsupported_version",
        )
    kind = header.get("type")
    form = FORMS.get(kind) if type(kind) is str else None
    if form is None or form.cls not in accept:
        known = ", ".join(sorted(TYPE_OF[cls] for cls in accept))
        raise CodecError(f"type {kind!s:.32} is not understood here, only {known}")
    return form


def _check_whole(message: Message) -> None:
    """Check what concerns several fields at once."""
    if isinstance(message, messages.Submit | messages.Run):
        given = [
            kind
            for kind, there in (
                ("text", bool(message.text)),
                ("messages", bool(message.messages)),
                ("tokens", bool(message.prompt_ids)),
            )
            if there
        ]
        if any(kind != message.kind for kind in given):
            raise ValueError(f"kind is {message.kind!r} but there is a prompt as {given}")
    elif isinstance(message, messages.Chunk):
        total = sum(piece.count for piece in message.pieces)
        if total * limits.ID_BYTES != len(message.ids):
            raise ValueError("the pieces' counts do not add up to the token ids attached")
        for piece in message.pieces:
            if piece.logprobs is not None and len(piece.logprobs) != piece.count:
                raise ValueError("there must be one entry of logprobs for each token")
