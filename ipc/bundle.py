"""Several small messages that go a hop as one: a round's chunks, a burst of requests.

What a message costs on its way is mostly waking threads and system calls, whatever its size.

A bundle is written without msgpack's code, in the bytes that msgpack would write, and read without
it if all messages in it have two short frames, as chunks have: see lone_chunk.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from .codec import CodecError, unpack_header
from .limits import MAX_BUNDLED, MAX_FRAMES, MAX_HEADER_BYTES, PROTOCOL_VERSION

_BEGINS = b"\x83\xa1v\x01\xa4type\xa6bundle\xa8messages"
_WORD = b"\xa6bundle"
_WITHIN = 32  # bytes of a header: its first two fields are the version and the type
_ENOUGH = 1 << 16  # bytes of frames in a bundle made here; a larger message goes alone

_SHORT = 255  # bytes that a bin with a size of one byte can have
_BIN = [b"\xc4" + bytes((size,)) for size in range(_SHORT + 1)]
_PAIR_AND_BIN = [b"\x92" + begin for begin in _BIN]  # an array of two, and the first of them
_PAIR, _SHORT_BIN = 0x92, 0xC4
_COUNTS = [bytes((0x90 | n,)) if n < 16 else b"\xdc" + n.to_bytes(2, "big") for n in range(257)]
_COUNT_AT = len(_BEGINS)

Frames = TypeVar("Frames", bound=Sequence[bytes])


def bundled(messages: Sequence[list[bytes]]) -> Sequence[list[bytes]]:
    """Return what to send for these messages: neighbours become one as long as they are small."""
    if len(messages) < 2:
        return messages
    sent: list[list[bytes]] = []
    parts: list[bytes] = []  # of the bundle that is being made
    size = count = 0
    first = messages[0]
    for frames in messages:
        more = 0
        for frame in frames:
            more += len(frame)
        if count and (size + more > _ENOUGH or count == MAX_BUNDLED):
            sent.append(_as_one(first, parts, count))
            parts, size, count = [], 0, 0
        if count == 0:
            first = frames
        size += more
        count += 1
        if len(frames) == 2 and more <= _SHORT:  # a chunk, as almost all are
            one, other = frames
            parts += (_PAIR_AND_BIN[len(one)], one, _BIN[len(other)], other)
        else:
            parts.append(_COUNTS[len(frames)])
            for frame in frames:
                parts += (_begin_of(len(frame)), frame)
    sent.append(_as_one(first, parts, count))
    return sent


def _as_one(first: list[bytes], parts: list[bytes], count: int) -> list[bytes]:
    return first if count == 1 else [b"".join((_BEGINS, _COUNTS[count], *parts))]


def _begin_of(size: int) -> bytes:
    """Return what comes before the bytes of a bin."""
    if size <= _SHORT:
        return _BIN[size]
    return (
        b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")
    )


def unbundled(frames: Sequence[bytes]) -> list[list[bytes]] | None:
    """Return the messages in a bundle, or None if this is none. Raises CodecError for a bad one."""
    if len(frames) != 1 or frames[0].find(_WORD, 0, _WITHIN) < 0:
        return None
    pairs = _pairs_in(frames[0])
    if pairs is not None:
        return pairs
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


def _pairs_in(bundle: bytes) -> list[list[bytes]] | None:
    """Return the messages, if all have two short frames and it is written as here."""
    if not bundle.startswith(_BEGINS) or len(bundle) > MAX_HEADER_BYTES:
        return None
    pairs: list[list[bytes]] = []
    end = len(bundle)
    try:
        count, at = bundle[_COUNT_AT] - 0x90, _COUNT_AT + 1
        if not 0 < count < 16:
            count = bundle[at] << 8 | bundle[at + 1]
            at += 2
            if bundle[_COUNT_AT] != 0xDC or not 0 < count <= MAX_BUNDLED:
                return None
        for _ in range(count):
            first = at + 3
            then = first + bundle[at + 2]
            second = then + 2
            if bundle[at] != _PAIR or bundle[at + 1] != _SHORT_BIN or bundle[then] != _SHORT_BIN:
                return None
            at = second + bundle[then + 1]
            pairs.append([bundle[first:then], bundle[second:at]])
    except IndexError:
        return None
    return pairs if at == end else None


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
