"""Chunks go a quicker way through the codec; nobody may see a difference."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc import limits
from ipc import messages as m
from ipc.chunk_codec import glance, read_chunk, write_chunk
from ipc.codec import CodecError, decode, decode_generally, encode, encode_generally
from ipc.token_ids import pack_ids

names = st.text(min_size=1, max_size=40)
numbers = st.integers(0, limits.MAX_COUNT)
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=4)
logprobs = st.just(((1, -0.5, ((1, -0.5),)),))


@st.composite
def chunks(draw: Any) -> m.Chunk:
    pieces = []
    ids: list[int] = []
    for index in range(draw(st.integers(1, 3))):
        gained = draw(tokens)
        ids += gained
        pieces.append(
            m.Piece(
                *(index, len(gained), draw(st.text(max_size=20))),
                logprobs=draw(st.none() | logprobs) if len(gained) == 1 else None,
                reason=draw(st.none() | st.just("stop")),
                usage=draw(st.none() | st.just({"prompt_tokens": 3})),
                prompt_logprobs=draw(st.none() | st.just((None, (1, -0.5, ())))),
                prompt_start=draw(st.integers(0, 1)),
            )
        )
    run = draw(st.just("") | names)
    return m.Chunk(draw(names), draw(numbers), draw(numbers), tuple(pieces), run, pack_ids(ids))


def outcome(read: Any) -> Any:
    try:
        return read()
    except CodecError as error:
        return (str(error), error.code, error.request_id, error.run)


ODD = (
    *(None, True, False, -1, 0, 1.0, 2.0, 2**48, 2**48 + 1, 1024, "", "x" * 32, "x" * 33),
    *("x" * 129, "é" * 65, b"r", [], {}, [[]], [{}]),
    *(msgpack.ExtType(5, b"x"), msgpack.Timestamp(1), 2**63, {"x": msgpack.ExtType(5, b"x")}),
)


CHUNK = m.Chunk("r", 0, 0, (m.Piece(0, 1, "eins"),), "e-1", pack_ids([5]))


def assert_read_alike(fields: dict[str, Any], attached: bytes) -> None:
    frames = [msgpack.packb(fields), attached]
    generally = outcome(lambda: decode_generally(frames, m.TO_CLIENT))
    assert outcome(lambda: decode(frames, m.TO_CLIENT)) == generally


@given(chunks())
def test_a_chunk_is_written_as_the_general_form_writes_it(chunk: m.Chunk) -> None:
    assert encode(chunk) == encode_generally(chunk)
    assert decode(encode(chunk), m.TO_CLIENT) == chunk


@pytest.mark.parametrize("name", ["v", "id", "seq", "position", "pieces", "run", "x"])
@pytest.mark.parametrize("value", [*ODD, ...], ids=lambda value: repr(value)[:20])
def test_a_field_of_another_kind_is_read_or_refused_as_by_the_general_form(
    name: str, value: Any
) -> None:
    frames = encode(CHUNK)
    fields = {**msgpack.unpackb(frames[0]), name: value}
    if value is ...:  # the field is missing
        del fields[name]
    assert_read_alike(fields, frames[1])
    assert_read_alike(fields, b"")


@pytest.mark.parametrize("name", ["index", "count", "text", "logprobs", "reason", "usage", "x"])
@pytest.mark.parametrize("value", [*ODD, ...], ids=lambda value: repr(value)[:20])
def test_a_piece_of_another_kind_is_read_or_refused_as_by_the_general_form(
    name: str, value: Any
) -> None:
    frames = encode(CHUNK)
    fields = msgpack.unpackb(frames[0])
    fields["pieces"][0] = {**fields["pieces"][0], name: value}
    if value is ...:
        del fields["pieces"][0][name]
    assert_read_alike(fields, frames[1])


@pytest.mark.parametrize("attached", [b"", bytes(3), bytes(5), bytes(8)])
def test_attachments_that_do_not_fit_are_refused_as_by_the_general_form(attached: bytes) -> None:
    assert_read_alike(msgpack.unpackb(encode(CHUNK)[0]), attached)


def test_the_usual_chunk_goes_the_quick_way_and_limits_are_the_general_forms() -> None:
    chunk = m.Chunk("r" * 32, 3, 8, (m.Piece(0, 1, "eins"),), "e-1", pack_ids([5]))
    frames = encode(chunk)
    assert write_chunk(chunk) == frames
    assert glance(frames) == ("e-1", 3, 8)
    assert read_chunk(frames) == chunk

    long = m.Chunk("r", 0, 0, (m.Piece(0, 1, "x" * limits.MAX_HEADER_BYTES),), "", pack_ids([5]))
    assert write_chunk(long) is None
    assert "has a header of" in str(outcome(lambda: encode(long)))
    many = m.Chunk("r", 0, 0, (m.Piece(0, 0, ""),), "", bytes(limits.MAX_FRAME_BYTES + 4))
    assert write_chunk(many) is None
    pieces = tuple(m.Piece(0, 0, "") for _ in range(limits.MAX_SAMPLES + 1))
    crowd = [msgpack.packb({**msgpack.unpackb(frames[0]), "pieces": [
        {"index": 0, "count": 0, "text": ""} for _ in pieces]}), b""]  # fmt: skip
    assert read_chunk(crowd) is None
    assert "array of 1 to" in str(outcome(lambda: decode(crowd, m.TO_CLIENT)))


def test_a_side_that_takes_no_chunks_is_told_what_it_takes() -> None:
    frames = encode(m.Chunk("r", 0, 0, (m.Piece(0, 1, ""),), "", pack_ids([1])))
    assert "chunk" in str(outcome(lambda: decode(frames, m.FROM_CLIENT)))
