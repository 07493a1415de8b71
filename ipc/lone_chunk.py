"""The chunk that almost every message is, one piece of tokens and text, without msgpack.

It is written in one layout: fields in one order, numbers of one size each, which any reader of
msgpack understands. So it can be read by comparing what never changes. For who was woken from a
long sleep that takes half of what msgpack's code takes to be fetched from memory (see frames.py);
what is written otherwise (None here) goes the general way.
"""

from collections.abc import Sequence
from struct import Struct, error

from .limits import ID_BYTES, MAX_FRAME_BYTES, MAX_ID_BYTES, MAX_SAMPLES

LoneChunk = tuple[str, int, int, str, int, int, str]
"""Run, sequence number, position, request id, sample index, number of tokens, text."""

_BEGINS = b"\x87\xa1v\x01\xa4type\xa5chunk\xa3seq\xce"
_THEN = b"\xa8position\xce"
_ID = b"\xa2id\xd9"  # a string that says its size in one byte
_RUN = b"\xa3run\xd9"
_PIECES = b"\xa6pieces\x91\x83\xa5index\xcd"
_COUNT = b"\xa5count\xce"
_TEXT = b"\xa4text\xda"  # a string that says its size in two bytes

_HEAD = Struct(f">{len(_BEGINS)}sI{len(_THEN)}sI{len(_ID)}s")
_HEAD_AND_SIZE = Struct(f"{_HEAD.format}B")
_PIECE = Struct(f">{len(_PIECES)}sH{len(_COUNT)}sI{len(_TEXT)}sH")
_ID_AT = _HEAD_AND_SIZE.size
_RUN_SIZE = len(_RUN)
_PIECE_SIZE = _PIECE.size


def names_of(request_id: str, run: str) -> bytes:
    """Return the part of a header that is the same for all chunks of a run."""
    one, other = request_id.encode(), run.encode()
    return bytes((len(one),)) + one + _RUN + bytes((len(other),)) + other


def write_lone(
    names: bytes, seq: int, position: int, *, index: int, count: int, text: str
) -> bytes | None:
    """Return the header of a chunk of one piece."""
    data = text.encode()
    try:
        head = _HEAD.pack(_BEGINS, seq, _THEN, position, _ID)
        piece = _PIECE.pack(_PIECES, index, _COUNT, count, _TEXT, len(data))
    except error:
        return None
    return head + names + piece + data


def read_lone(frames: Sequence[bytes]) -> LoneChunk | None:
    """Return what a chunk in that layout says, if it keeps all limits."""
    try:
        frame, ids = frames
        begins, seq, then, position, name, size = _HEAD_AND_SIZE.unpack_from(frame)
        id_ends = _ID_AT + size
        run_at = id_ends + _RUN_SIZE + 1
        run_ends = run_at + frame[run_at - 1]
        pieces, index, counts, count, texts, length = _PIECE.unpack_from(frame, run_ends)
        text_at = run_ends + _PIECE_SIZE
        if (
            begins != _BEGINS
            or then != _THEN
            or name != _ID
            or frame[id_ends : run_at - 1] != _RUN
            or pieces != _PIECES
            or counts != _COUNT
            or texts != _TEXT
            or text_at + length != len(frame)
            or count * ID_BYTES != len(ids)
            or not 0 < size <= MAX_ID_BYTES
            or not 0 < run_ends - run_at <= MAX_ID_BYTES
            or index >= MAX_SAMPLES
            or len(ids) > MAX_FRAME_BYTES
        ):
            return None
        return (
            frame[run_at:run_ends].decode(),
            seq,
            position,
            frame[_ID_AT:id_ends].decode(),
            index,
            count,
            frame[text_at:].decode(),
        )
    except (ValueError, IndexError, error):  # no two frames, no UTF-8, too short
        return None
