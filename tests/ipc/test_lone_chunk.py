"""The usual chunk is written and read without msgpack; nobody may see a difference."""

from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipc import limits
from ipc import messages as m
from ipc.codec import CodecError, decode_generally
from ipc.lone_chunk import LoneChunk, names_of, read_lone, write_lone
from ipc.token_ids import pack_ids

names = st.text(min_size=1, max_size=128).filter(lambda name: len(name.encode()) <= 128)
numbers = st.integers(0, 2**32 - 1)
indices = st.integers(0, limits.MAX_SAMPLES - 1)
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=4)
FRAME = write_lone(names_of("r" * 32, "e-1"), 3, 8, index=0, count=1, text=" eins")


def generally(frames: list[bytes]) -> LoneChunk | None:
    """Return what the general form reads, if it is a chunk that has what a lone one has."""
    try:
        chunk = decode_generally(frames, m.TO_CLIENT)
    except CodecError:
        return None
    assert isinstance(chunk, m.Chunk)
    (piece,) = chunk.pieces
    assert chunk.ids is frames[1]
    assert piece == m.Piece(piece.index, piece.count, piece.text)
    place = (chunk.run, chunk.seq, chunk.position)
    return (*place, chunk.id, piece.index, piece.count, piece.text)


@given(
    who=st.tuples(names, names),
    place=st.tuples(numbers, numbers),
    index=indices,
    gained=tokens,
    text=st.text(max_size=300),
)
@example(who=("£run\u0660", "e-1"), place=(0, 0), index=0, gained=[], text="")
def test_what_is_written_is_read_and_is_a_chunk_to_everybody(
    who: tuple[str, str], place: tuple[int, int], index: int, gained: list[int], text: str
) -> None:
    frame = write_lone(names_of(*who), *place, index=index, count=len(gained), text=text)
    assert frame is not None
    frames = [frame, pack_ids(gained)]
    assert read_lone(frames) == (who[1], *place, who[0], index, len(gained), text)
    assert read_lone(frames) == generally(frames)


@settings(max_examples=1000)
@given(
    at=st.integers(0, len(FRAME or b"") - 1),
    put=st.binary(max_size=3),
    cut=st.integers(0, 3),
    ids=st.sampled_from([bytes(4), b"", bytes(8), bytes(3)]),
)
@example(at=30, put=b"", cut=0, ids=b"")
def test_a_spoiled_one_is_read_as_the_general_form_reads_it_or_left_to_it(
    at: int, put: bytes, cut: int, ids: bytes
) -> None:
    assert FRAME is not None
    frames = [FRAME[:at] + put + FRAME[at + cut :], ids]
    read = read_lone(frames)
    assert read is None or read == generally(frames)


@pytest.mark.parametrize("spoiled", [b"", b"\x87", (FRAME or b"")[:-1], (FRAME or b"") + b"x"])
def test_what_is_too_short_or_too_long_is_left_to_the_general_form(spoiled: bytes) -> None:
    assert read_lone([spoiled, bytes(4)]) is None
    assert read_lone([spoiled]) is None
    assert read_lone([spoiled, bytes(4), b""]) is None


def test_what_does_not_fit_the_layout_is_left_to_the_general_form() -> None:
    usual: dict[str, Any] = {"seq": 3, "position": 8, "index": 0, "count": 1, "text": ""}
    for name, value in {"seq": 2**32, "position": 2**32, "text": "x" * 65536}.items():
        assert write_lone(names_of("r", "e-1"), **{**usual, name: value}) is None
    odd = msgpack.packb({"v": 1, "type": "chunk", "id": "r", "seq": 3, "position": 8})
    assert read_lone([odd, bytes(4)]) is None


@pytest.mark.parametrize("name", ["x" * 129, ""])
def test_a_name_beyond_the_limits_is_left_to_the_general_form(name: str) -> None:
    frame = write_lone(names_of(name, "e-1"), 3, 8, index=0, count=0, text="")
    assert frame is not None
    assert read_lone([frame, b""]) is None
    frame = write_lone(names_of("r", name), 3, 8, index=0, count=0, text="")
    assert frame is not None
    assert read_lone([frame, b""]) is None
