"""The quick way for chunks, the one message that every request gets in every round.

It writes and reads what the codec's general form would; what it leaves (None) goes there, to be
read after all or to be refused with the reason.
"""

from collections.abc import Sequence
from typing import Any, cast

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
from .messages import Chunk, Piece

_LONGEST = 4  # bytes of UTF-8 a character


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
    frame = cast(bytes, msgpack.packb(header))
    if len(frame) > MAX_HEADER_BYTES or len(chunk.ids) > MAX_FRAME_BYTES:
        return None
    return [frame, chunk.ids]


def read_chunk(header: dict[str, Any], frames: Sequence[bytes]) -> Chunk | None:
    """Return the chunk that a header of type "chunk" makes with its frames."""
    if len(frames) != 2:
        return None
    ids = frames[1]
    get = header.get
    version, values = get("v"), get("pieces")
    request_id, run, seq, position = get("id"), get("run"), get("seq"), get("position")
    if (
        type(version) is not int
        or version != PROTOCOL_VERSION
        or len(frames[0]) > MAX_HEADER_BYTES
        or len(ids) > MAX_FRAME_BYTES
        or type(request_id) is not str
        or not 0 < len(request_id) * _LONGEST <= MAX_ID_BYTES
        or type(seq) is not int
        or not 0 <= seq <= MAX_COUNT
        or type(position) is not int
        or not 0 <= position <= MAX_COUNT
        or type(values) is not list
        or not 0 < len(values) <= MAX_SAMPLES
    ):
        return None
    if run is None:
        run = ""
    elif type(run) is not str or not 0 < len(run) * _LONGEST <= MAX_ID_BYTES:
        return None
    total = 0
    pieces = []
    for value in values:
        piece = _read_piece(value)
        if piece is None:
            return None
        total += piece.count
        pieces.append(piece)
    if total * ID_BYTES != len(ids):
        return None
    return Chunk(request_id, seq, position, tuple(pieces), run, ids)


def _read_piece(value: Any) -> Piece | None:
    """Return a piece that has nothing but the three fields that each has."""
    if type(value) is not dict or len(value) != 3:
        return None
    index, count, text = value.get("index"), value.get("count"), value.get("text")
    if (
        type(index) is int
        and 0 <= index < MAX_SAMPLES
        and type(count) is int
        and 0 <= count <= MAX_COUNT
        and type(text) is str
        and len(text) * _LONGEST <= MAX_HEADER_BYTES
    ):
        return Piece(index, count, text)
    return None
