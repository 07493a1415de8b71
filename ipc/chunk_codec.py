"""The quick way for chunks, the one message that every request gets in every round.

What has one piece is usually written in the way of lone_chunk, and read in less time yet.
It writes and reads what the codec's general form would; what it leaves (None, or False) goes there,
to be read after all or to be refused with the reason.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from .limits import (
    ID_BYTES,
    MAX_COUNT,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_ID_BYTES,
    MAX_SAMPLES,
    PROTOCOL_VERSION,
)
from .lone_chunk import read_lone
from .messages import Chunk, Piece

_BEGINNING = b"\xa1v\x01\xa4type\xa5chunk"  # of every header written here, after the map's size
_BEGINS = len(_BEGINNING)
_SMALL_MAP = 0x80  # and the number of fields
_LONGEST_HEADER = 1 << 16
_LONGEST_ID = MAX_ID_BYTES // 4  # characters, of up to four bytes
_packer = msgpack.Packer()  # making one takes longer than a chunk does


def write_chunk(chunk: Chunk) -> list[bytes] | None:
    """Return the frames of a chunk whose pieces have tokens and text only."""
    pieces = []
    for piece in chunk.pieces:
        if (
            piece.logprobs is not None
            or piece.reason is not None
            or piece.usage is not None
            or piece.prompt_logprobs is not None
            or piece.prompt_start
        ):
            return None
        pieces.append({"index": piece.index, "count": piece.count, "text": piece.text})
    header: dict[str, Any] = {
        "v": PROTOCOL_VERSION,
        "type": "chunk",
        "id": chunk.id,
        "seq": chunk.seq,
        "position": chunk.position,
        "pieces": pieces,
    }
    if chunk.run:
        header["run"] = chunk.run
    frame: bytes = _packer.pack(header)
    if len(frame) > MAX_HEADER_BYTES or len(chunk.ids) > MAX_FRAME_BYTES:
        return None
    return [frame, chunk.ids]


def read_chunk(frames: Sequence[bytes]) -> Chunk | None:
    """Return the chunk that frames hold, if it is a plain one."""
    lone = read_lone(frames)
    if lone is not None:
        run, seq, position, request_id, index, count, text = lone
        return Chunk(request_id, seq, position, (Piece(index, count, text),), run, frames[1])
    header = _plain_header(frames)
    if header is None:
        return None
    pieces = [Piece(value["index"], value["count"], value["text"]) for value in header["pieces"]]
    place = (header["id"], header["seq"], header["position"])
    return Chunk(*place, tuple(pieces), header.get("run", ""), frames[1])


def glance(frames: Sequence[bytes]) -> tuple[str, int, int] | None:
    """Return run, sequence number and position of a plain chunk."""
    header = _plain_header(frames)
    return None if header is None else (header.get("run", ""), header["seq"], header["position"])


def _plain_header(frames: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the header of a chunk of tokens and text only, written as here and within all limits.

    No field but the known ones, of plain kinds: whatever msgpack may hold otherwise is for the
    general form to refuse, so it is unpacked here without asking for anything.
    """
    frame, ids = frames if len(frames) == 2 else (b"", b"")
    if frame[1 : _BEGINS + 1] != _BEGINNING or len(frame) > _LONGEST_HEADER:
        return None
    try:
        header: dict[str, Any] = msgpack.unpackb(frame)
        request_id, run, seq = header["id"], header.get("run"), header["seq"]
        position, values = header["position"], header["pieces"]
    except Exception:  # msgpack raises a dozen kinds
        return None
    if (
        frame[0] != _SMALL_MAP | len(header)
        or len(header) != (6 if run is None else 7)
        or type(request_id) is not str
        or not 0 < len(request_id) <= _LONGEST_ID
        or (run is not None and (type(run) is not str or not 0 < len(run) <= _LONGEST_ID))
        or type(seq) is not int
        or not 0 <= seq <= MAX_COUNT
        or type(position) is not int
        or not 0 <= position <= MAX_COUNT
        or type(values) is not list
        or not 0 < len(values) <= MAX_SAMPLES
        or len(ids) > MAX_FRAME_BYTES
    ):
        return None
    total = 0
    for value in values:
        if type(value) is not dict or len(value) != 3:
            return None
        index, count = value.get("index"), value.get("count")
        if (
            type(index) is not int
            or not 0 <= index < MAX_SAMPLES
            or type(count) is not int
            or not 0 <= count <= MAX_COUNT
            or type(value.get("text")) is not str
        ):
            return None
        total += count
    return header if total * ID_BYTES == len(ids) else None
