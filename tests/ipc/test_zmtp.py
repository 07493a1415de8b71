"""ZMTP by hand: bytes in any pieces become the messages that libzmq would have, or an error."""

import itertools
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.limits import MAX_FRAME_BYTES, MAX_FRAMES
from ipc.zmtp import GREETING, BrokenPeerError, Reader, framed

READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        yield data[start:end]


@settings(max_examples=200, deadline=None)
@given(
    sent=st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=MAX_FRAMES), max_size=5),
    cuts=st.lists(st.integers(0, 10_000), max_size=30),
)
def test_messages_arrive_as_they_were_sent_however_they_are_cut(
    sent: list[list[bytes]], cuts: list[int]
) -> None:
    reader = Reader(b"DEALER")
    for piece in pieces(GREETING + READY + b"".join(map(framed, sent)), cuts):
        reader.feed(piece)
    assert list(reader.messages) == sent
    assert reader.is_ready


def ready() -> Reader:
    reader = Reader(b"DEALER")
    reader.feed(GREETING + READY)
    return reader


def test_bytes_that_are_one_message_of_two_short_frames_are_known_as_that_and_no_others() -> None:
    whole = framed([b"ab", b"cde"])
    assert ready().alone(whole) == [b"ab", b"cde"]
    others = {whole[:size] for size in range(len(whole))} | {whole + b"x", whole + whole}
    others |= {framed([b"ab"]), framed([b"ab", b"c", b"d"]), framed([b"ab", b"x" * 256])}
    for place, byte in itertools.product(range(len(whole)), range(256)):
        others.add(whole[:place] + bytes((byte,)) + whole[place + 1 :])
    for data in others - {whole}:
        message, reader = ready().alone(data), ready()
        if message is not None:
            reader.feed(data + framed([b"next"]))
            assert reader.messages == [message, [b"next"]], data


@pytest.mark.parametrize("before", [b"\x01", b"\x01\x02a", framed([b"a", b"b"])[:3], b"\x01\0"])
def test_bytes_that_go_on_with_earlier_ones_are_no_message_of_their_own(before: bytes) -> None:
    reader = ready()
    reader.feed(before)
    assert reader.alone(framed([b"ab", b"cde"])) is None


def test_before_the_other_side_is_ready_nothing_is_a_message() -> None:
    reader = Reader(b"DEALER")
    assert reader.alone(framed([b"ab", b"cde"])) is None
    reader.feed(GREETING)
    assert reader.alone(framed([b"ab", b"cde"])) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=5))
def test_whatever_comes_is_read_or_refused(rubbish: bytes, cuts: list[int]) -> None:
    reader = Reader(b"DEALER")
    try:
        for piece in pieces(GREETING + READY + rubbish, cuts):
            reader.feed(piece)
    except BrokenPeerError:
        return
    assert sum(len(frame) for frames in reader.messages for frame in frames) <= len(rubbish)


def test_a_long_frame_in_small_pieces_is_not_copied_for_each() -> None:
    reader = Reader(b"DEALER")
    reader.feed(GREETING + READY)
    message = framed([bytes(MAX_FRAME_BYTES)])
    began = time.process_time()
    for start in range(0, len(message), 40):
        reader.feed(message[start : start + 40])
    assert time.process_time() - began < 5.0  # copying all of it each time takes minutes
    assert [len(frame) for frame in reader.messages[0]] == [MAX_FRAME_BYTES]


def test_more_frames_than_a_message_has_are_thrown_away_all_but_one() -> None:
    reader = Reader(b"DEALER")
    reader.feed(GREETING + READY + framed([b"x"] * 1000) + framed([b"next"]))
    long, following = reader.messages
    assert (len(long), following) == (MAX_FRAMES + 1, [b"next"])


def test_a_ping_is_answered_with_its_context() -> None:
    reader = Reader(b"DEALER")
    reader.feed(GREETING + READY)
    reader.take_answers()
    reader.feed(bytes((4, 10)) + b"\x04PING\x00\x09abc")
    assert reader.take_answers() == [bytes((4, 8)) + b"\x04PONGabc"]
    assert not reader.messages


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n" * 4,
        GREETING.replace(b"NULL\0", b"CURVE"),
        b"\xff" + bytes(8) + b"\x7f\x01" + bytes(60),
        GREETING + framed([b"before READY"]),
        GREETING + READY + b"\x02" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"),
        GREETING + READY + b"\x40\x01x",
        GREETING + b"\x04\x0d\x05ERROR\x06denied",
    ],
)
def test_what_is_no_good_peer_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenPeerError):
        Reader(b"DEALER").feed(data)


def test_libzmq_understands_what_is_written_here() -> None:
    context: zmq.Context[Any] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    reader = Reader(b"DEALER")
    try:
        with socket.create_connection(("127.0.0.1", port)) as made:
            made.settimeout(60)
            made.sendall(GREETING)
            while not reader.is_ready:
                reader.feed(made.recv(7))
                made.sendall(b"".join(reader.take_answers()))
            sent = [[b"", b"x" * 255, b"y" * 256], [b"z" * 100_000]]
            made.sendall(b"".join(map(framed, sent)))
            got = [router.recv_multipart() for _ in sent]
            assert [frames for _, *frames in got] == sent
            for message in got:
                router.send_multipart(message)
            while len(reader.messages) < 2:
                reader.feed(made.recv(1000))
            assert list(reader.messages) == sent
    finally:
        router.close()
        context.term()
