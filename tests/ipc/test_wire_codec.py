import random
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_examples import ALL_TYPES, EXAMPLES, spoil

from ipc import limits
from ipc import messages as m
from ipc.codec import CodecError, decode, encode
from ipc.token_ids import pack_ids, unpack_ids


def header(**fields: object) -> bytes:
    return msgpack.packb({"v": 1, "type": "ping", **fields})


def refusal(frames: list[bytes], accept: tuple[type, ...] = ALL_TYPES) -> CodecError:
    with pytest.raises(CodecError) as caught:
        decode(frames, accept)
    return caught.value


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_went(message: m.Message) -> None:
    assert decode(encode(message), ALL_TYPES) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_unknown_fields_are_ignored(message: m.Message) -> None:
    frames = encode(message)
    fields = msgpack.unpackb(frames[0])
    fields["later"] = {"anything": [1, None]}
    assert decode([msgpack.packb(fields), *frames[1:]], ALL_TYPES) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_frame_too_many_or_too_few_is_refused(message: m.Message) -> None:
    frames = encode(message)
    assert "frames" in str(refusal([*frames, b""]))
    if len(frames) > 1:
        assert "frames" in str(refusal(frames[:-1]))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_bytes_after_the_map_are_refused(message: m.Message) -> None:
    frames = encode(message)
    refusal([frames[0] + b"\xc0", *frames[1:]])


def test_a_type_that_this_side_does_not_take_is_refused() -> None:
    frames = encode(m.Drain())
    assert "drain" in str(refusal(frames, m.FROM_CLIENT))
    assert "teapot" in str(refusal([header(type="teapot")]))


def test_another_version_is_refused_by_its_own_code() -> None:
    for version in (0, 2, True, "1", None, 1.0):
        assert refusal([header(v=version)]).code == "unsupported_version"


def test_ext_types_are_refused_wherever_they_are() -> None:
    for value in (msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 2), msgpack.ExtType(5, b"")):
        refusal([header(later=value)])
        refusal([header(later=[{"deep": value}])])


def test_what_is_no_map_with_string_keys_is_refused() -> None:
    for frame in (b"", b"\xc0", b"\x90", msgpack.packb([1]), msgpack.packb({1: 2}), b"\xc1"):
        refusal([frame])
    refusal([])


def test_a_bool_is_no_number_and_a_nan_is_none() -> None:
    refusal([header(nonce=True)])
    welcome = {"type": "welcome", "epoch": "e"}
    refusal([header(**welcome, heartbeat=float("nan"))])
    refusal([header(**welcome, heartbeat=float("inf"))])
    refusal([header(**welcome, heartbeat=-1)])
    assert decode([header(**welcome, heartbeat=1)], ALL_TYPES) == m.Welcome("e", 1.0)


def test_the_error_names_the_field_and_the_request() -> None:
    error = refusal([header(type="credit", id="r9", received=1)])
    assert "'tokens' is missing" in str(error)
    assert error.request_id == "r9"
    error = refusal([header(type="credit", id="r9", received="1", tokens=2)])
    assert "'received' must be a whole number" in str(error)


def test_a_container_that_claims_to_be_huge_costs_nothing() -> None:
    nested = b"\x81\xa1a" + b"\xdd\x00\x00\x10\x00" * 1000
    claims = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", nested]
    tracemalloc.start()
    for claim in claims:
        refusal([claim])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"type": "ack", "id": "x" * (limits.MAX_ID_BYTES + 1)}, limits.MAX_ID_BYTES),
        ({"type": "ack", "id": "é" * (limits.MAX_ID_BYTES // 2 + 1)}, limits.MAX_ID_BYTES),
        ({"type": "hello", "role": "client", "name": "x" * 65}, limits.MAX_NAME_BYTES),
        ({"type": "drain", "reason": "x" * 257}, limits.MAX_REASON_BYTES),
        ({"type": "ping", "nonce": limits.MAX_COUNT + 1}, limits.MAX_COUNT),
        ({"type": "accepted", "id": "r", "seed": -1}, limits.MAX_SEED),
        (
            {"type": "error", "code": "c", "message": "x" * 4097, "retryable": True},
            limits.MAX_ERROR_BYTES,
        ),
        (
            {"type": "hello", "role": "worker", "name": "w", "models": ["m"] * 65},
            limits.MAX_MODELS,
        ),
    ],
)
def test_every_length_has_a_limit(fields: dict[str, object], limit: int) -> None:
    assert str(limit) in str(refusal([header(**fields)]))


def test_long_arrays_and_maps_are_refused_even_where_nobody_reads_them() -> None:
    decode([header(later=[0] * limits.MAX_ARRAY)], ALL_TYPES)
    refusal([header(later=[0] * (limits.MAX_ARRAY + 1))])
    refusal([header(later={str(number): 0 for number in range(limits.MAX_MAP + 1)})])


def test_a_header_beyond_its_limit_is_refused_before_it_is_decoded() -> None:
    refusal([b"\x81\xa1a\xdb" + struct.pack(">I", 5 << 20) + b"x" * (5 << 20)])
    long = m.Submit(id="r", kind="text", text="x" * limits.MAX_PROMPT_HEADER_BYTES)
    with pytest.raises(CodecError, match="at most"):
        encode(long)


def test_a_long_prompt_fits_and_other_headers_stay_short() -> None:
    text = "x" * (3 << 20)
    message = m.Submit(id="r", kind="text", text=text)
    assert decode(encode(message), m.FROM_CLIENT) == message
    assert "longer" in str(refusal([header(later="x" * limits.MAX_HEADER_BYTES)]))


def test_attachments_are_whole_ids_within_the_limit() -> None:
    frames = encode(m.Chunk("r", 0, 0, (m.Piece(0, 1, ""),), ids=pack_ids([1])))
    refusal([frames[0], b"\x00\x00\x00"])
    refusal([frames[0], b"\x00" * 8])
    refusal([frames[0], b"\x00" * (limits.MAX_FRAME_BYTES + 4)])


def test_logprobs_are_one_a_token() -> None:
    piece = m.Piece(0, 2, "", logprobs=((1, -1.0, ()),))
    frames = encode(m.Chunk("r", 0, 0, (piece,), ids=pack_ids([1, 2])))
    assert "logprobs" in str(refusal(frames))


def test_a_prompt_of_another_kind_than_it_says_is_refused() -> None:
    refusal(encode(m.Submit(id="r", kind="text", prompt_ids=pack_ids([1]))))
    refusal(encode(m.Submit(id="r", kind="tokens", text="hello")))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_token_ids_are_four_little_endian_bytes_each(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert packed == struct.pack(f"<{len(ids)}I", *ids)
    assert unpack_ids(packed) == tuple(ids)


def test_what_is_no_token_id_is_refused_by_name() -> None:
    for bad in ([-1], [2**32], [1.5], ["x"], [None]):
        with pytest.raises(ValueError, match="token ids must be integers"):
            pack_ids(bad)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_do_more_than_be_refused(frames: list[bytes]) -> None:
    refusal(frames)


def fuzz_codec(count: int, seed: int) -> None:
    chance = random.Random(seed)
    good = [encode(example) for example in EXAMPLES]
    for _ in range(count):
        try:
            decode(spoil(chance.choice(good), chance), ALL_TYPES)
        except CodecError:
            continue


def test_twenty_thousand_spoiled_messages_do_no_more_than_be_refused() -> None:
    fuzz_codec(20_000, seed=1)


@pytest.mark.soak
def test_a_million_spoiled_messages_do_no_more_than_be_refused() -> None:
    fuzz_codec(1_000_000, seed=2)
