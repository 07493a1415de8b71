"""Several small messages that go a hop as one: a round's chunks, a burst of requests.

What a message costs on its way is mostly waking threads and calling ZeroMQ, whatever its size.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgpack

from .codec import CodecError, unpack_header
from .limits import MAX_BUNDLED, MAX_FRAMES, MAX_HEADER_BYTES, PROTOCOL_VERSION

_WORD = b"\xa6bundle"
_WITHIN = 32  # bytes of a header: its first two fields are the version and the type
_ENOUGH = 1 << 16  # bytes of frames in a bundle made here; a larger message goes alone
_packer = msgpack.Packer()

Frames = TypeVar("Frames", bound=Sequence[bytes])


def bundled(messages: Sequence[list[bytes]]) -> Sequence[list[bytes]]:
    """Return what to send for these messages: neighbours become one as long as they are small."""
    if len(messages) < 2:
        return messages
    sent: list[list[bytes]] = []
    some: list[list[bytes]] = []
    size = 0
    for frames in messages:
        more = sum(map(len, frames))
        if some and (size + more > _ENOUGH or len(some) == MAX_BUNDLED):
            sent.append(_as_one(some))
            some, size = [], 0
        some.append(frames)
        size += more
    sent.append(_as_one(some))
    return sent


def unbundled(frames: Sequence[bytes]) -> list[list[bytes]] | None:
    """Return the messages in a bundle, or None if this is none. Raises CodecError for a bad one."""
    if len(frames) != 1 or frames[0].find(_WORD, 0, _WITHIN) < 0:
        return None
    header = unpack_header(frames[0])
    if header.get("type") != "bundle":
        return None
    version = header.get("v")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise CodecError(f"version {version!s:.16} is not spoken here", code="unsupported_version")
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise CodecError(f"a bundle has at most {MAX_HEADER_BYTES} bytes")
    messages = header.get("messages")
    if type(messages) is not list or not 0 < len(messages) <= MAX_BUNDLED:
        raise CodecError(f"in bundle: messages must be an array of 1 to {MAX_BUNDLED}")
    for message in messages:
        if not _is_message(message):
            raise CodecError(f"in bundle: a message must be an array of 1 to {MAX_FRAMES} bin")
    return messages


def messages_of(frames: Frames) -> Sequence[Frames | list[bytes]]:
    """Return the messages in a bundle, or the one that this is. Raises CodecError for a bad one."""
    if len(frames) != 1:  # the usual case: a bundle is one frame
        return (frames,)
    several = unbundled(frames)
    return (frames,) if several is None else several


def _is_message(message: Any) -> bool:
    return (
        type(message) is list
        and 0 < len(message) <= MAX_FRAMES
        and all(type(frame) is bytes for frame in message)
    )


def _as_one(messages: list[list[bytes]]) -> list[bytes]:
    if len(messages) == 1:
        return messages[0]
    packed: bytes = _packer.pack({"v": PROTOCOL_VERSION, "type": "bundle", "messages": messages})
    return [packed]
