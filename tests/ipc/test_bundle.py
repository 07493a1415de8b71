"""Several messages go a hop as one, where both sides know how; nobody else may see it."""

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import Simulation, check_answer

from ipc import limits
from ipc import messages as m
from ipc.broker_core import BrokerCore
from ipc.broker_records import BrokerConfig, Send
from ipc.broker_workers import WorkerDesk
from ipc.bundle import bundled, unbundled
from ipc.client_core import ClientCore
from ipc.codec import CodecError, decode, encode
from ipc.joined_sends import joined
from ipc.token_ids import pack_ids

frames = st.lists(st.binary(max_size=40), min_size=1, max_size=limits.MAX_FRAMES)


def opened(sent: Any) -> list[list[bytes]]:
    several = [unbundled(each) or [each] for each in sent]
    return [each for messages in several for each in messages]


def is_no_bundle(sent: list[bytes]) -> bool:
    """Nor looks like one that was spoiled: no message does, a header being a map of its own."""
    try:
        return unbundled(sent) is None
    except CodecError:
        return False


@given(st.lists(frames.filter(is_no_bundle), max_size=6))
def test_what_is_bundled_comes_out_as_it_went_in(messages: list[list[bytes]]) -> None:
    sent = bundled(messages)
    assert len(sent) == min(len(messages), 1)
    assert opened(sent) == messages


sizes = st.sampled_from([0, 1, 100, 127, 128, 255, 256, 300])
mixed = st.lists(st.lists(sizes.map(bytes), min_size=1, max_size=3), min_size=2, max_size=40)


def packed(messages: Any) -> bytes:
    whole: bytes = msgpack.packb({"v": 1, "type": "bundle", "messages": messages})
    return whole


@given(mixed)
def test_a_bundle_has_the_bytes_that_msgpack_would_write(messages: list[list[bytes]]) -> None:
    assert bundled(messages) == [[packed(messages)]]


@pytest.mark.parametrize("count", [2, 15, 16, 17, 255, 256])
def test_however_many_chunks_are_bundled_msgpack_would_have_written_it(count: int) -> None:
    chunks = [[b"chunk %d" % number, bytes(4)] for number in range(count)]
    assert bundled(chunks) == [[packed(chunks)]]
    assert unbundled([packed(chunks)]) == chunks


@pytest.mark.parametrize("count", [2, 16])
def test_a_spoiled_bundle_of_chunks_is_read_as_msgpack_reads_it_or_refused(count: int) -> None:
    def read(frame: bytes, unpack: Any) -> Any:
        try:
            return unpack(frame)
        except Exception:  # msgpack raises a dozen kinds
            return None

    frame = packed([[b"ab", b"c"]] * count)
    spoiled = {frame[:place] + frame[place + 1 :] for place in range(len(frame))}
    spoiled |= {frame[:place] for place in range(len(frame))} | {frame + b"x", frame + b"\x92"}
    for place, byte in itertools.product(range(len(frame)), range(256)):
        spoiled.add(frame[:place] + bytes((byte,)) + frame[place + 1 :])
    for each in spoiled - {frame}:
        mine = read(each, lambda frame: unbundled([frame]))
        assert mine is None or mine == read(each, msgpack.unpackb)["messages"], each


def test_large_messages_go_alone_and_a_bundle_has_an_end() -> None:
    small, large = encode(m.Ping(1)), [b"x" * 70_000]
    assert bundled([small, large, small]) == [small, large, small]
    assert bundled([large, large]) == [large, large]

    many = [encode(m.Ping(number)) for number in range(limits.MAX_BUNDLED + 1)]
    first, last = bundled(many)
    assert unbundled(first) == many[:-1]
    assert last == many[-1]


def test_a_request_that_is_named_bundle_is_none() -> None:
    frames = encode(m.Cancel("bundle"))
    assert b"\xa6bundle" in frames[0][:32]
    assert unbundled(frames) is None
    assert decode(frames, m.FROM_CLIENT) == m.Cancel("bundle")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"v": 2}, "unsupported_version"),
        ({"v": True}, "unsupported_version"),
        ({"messages": []}, "bad_message"),
        ({"messages": [[b"x"]] * (limits.MAX_BUNDLED + 1)}, "bad_message"),
        ({"messages": [[b"x", b""]] * (limits.MAX_BUNDLED + 1)}, "bad_message"),
        ({"messages": None}, "bad_message"),
        ({"messages": [[]]}, "bad_message"),
        ({"messages": [[b""] * (limits.MAX_FRAMES + 1)]}, "bad_message"),
        ({"messages": [["x"]]}, "bad_message"),
        ({"messages": [b"x"]}, "bad_message"),
        ({"messages": [[b"x"]], "more": msgpack.ExtType(1, b"")}, "bad_message"),
        ({"messages": [[b"x" * limits.MAX_HEADER_BYTES]]}, "bad_message"),
    ],
)
def test_what_is_no_bundle_though_it_says_so_is_refused(fields: dict[str, Any], code: str) -> None:
    whole = {"v": 1, "type": "bundle", "messages": [[b"x"]]}
    assert unbundled([msgpack.packb({**whole, "unknown": 1})]) == [[b"x"]]
    with pytest.raises(CodecError) as caught:
        unbundled([msgpack.packb({**whole, **fields})])
    assert caught.value.code == code


def test_one_bad_message_in_a_bundle_disturbs_no_other_and_a_bundle_holds_none() -> None:
    core = ClientCore(now=0.0)
    core.receive(encode(m.Welcome("e", 1.0)), 0.0)
    core.submit(m.Submit("r", "text", "hi", params={"seed": 1}), 0.0)
    chunks = [m.Chunk("r", n, n, (m.Piece(0, 1, "a"),), "", pack_ids([n])) for n in range(2)]
    inner = bundled([encode(m.Ping()), encode(m.Ping())])[0]
    broken = [b"\xc1"]
    core.receive(bundled([encode(chunks[0]), broken, inner, encode(chunks[1])])[0], 0.0)
    assert core.take_events() == [("r", chunks[0]), ("r", chunks[1])]

    desk = WorkerDesk(BrokerCore(BrokerConfig(), now=0.0))
    hello = encode(m.Hello("worker", "w", ("fake",), 4))
    sends = desk.receive(b"peer", bundled([hello, broken, inner, hello])[0], 0.0)
    kinds = [decode(send.frames, m.TO_WORKER) for send in sends]
    assert [type(kind) for kind in kinds] == [m.Welcome, m.Error, m.Error, m.Welcome]
    assert isinstance(kinds[2], m.Error)
    assert "type bundle is not understood" in kinds[2].message


def test_only_a_peer_that_said_so_gets_bundles_and_each_keeps_its_order() -> None:
    core = BrokerCore(BrokerConfig(), now=0.0)
    desk = WorkerDesk(core)
    desk.receive(b"new", encode(m.Hello("worker", "n", ("fake",), 4, bundles=True)), 0.0)
    desk.receive(b"old", encode(m.Hello("worker", "o", ("fake",), 4)), 0.0)
    pings = [encode(m.Ping(number)) for number in range(4)]
    peers = [b"new", b"old", b"new", b"old"]
    sends = [Send("back", peer, ping) for peer, ping in zip(peers, pings, strict=True)]
    sends.append(Send("front", b"new", pings[0]))  # the other socket: somebody else
    assert joined(core, sends) == [
        Send("back", b"new", bundled([pings[0], pings[2]])[0]),
        Send("back", b"old", pings[1]),
        Send("back", b"old", pings[3]),
        Send("front", b"new", pings[0]),
    ]

    desk.receive(b"new", encode(m.Hello("worker", "n", ("fake",), 4)), 0.0)  # thinks otherwise
    assert all(unbundled(send.frames) is None for send in joined(core, sends))


@pytest.mark.parametrize("knows", [True, False])
def test_a_client_and_a_worker_bundle_for_a_broker_that_knows_them(knows: bool) -> None:
    sim = Simulation()
    if not knows:
        welcome = sim.core.welcome
        sim.core.welcome = lambda: m.Welcome(welcome().epoch, welcome().heartbeat, ("fake",))  # type: ignore[method-assign]
    worker, client = sim.worker(), sim.client()
    told: list[list[list[bytes]]] = [[], []]
    for each, link in zip(told, (worker.link, client.link), strict=True):
        link.up = Told(each)  # type: ignore[assignment]
    sim.run(0.5)
    asked = [client.submit(f"prompt {number}") for number in range(4)]
    sim.run(5)
    for number, request in enumerate(asked):
        check_answer(client, request, f"prompt {number}")
    assert [any(unbundled(frames) for frames in each) for each in told] == [knows, knows]


class Told(list[list[bytes]]):
    """A link's way up that remembers."""

    def __init__(self, told: list[list[bytes]]) -> None:
        self._told = told

    def extend(self, messages: Any) -> None:
        self._told.extend(messages)
        super().extend(messages)

    def popleft(self) -> list[bytes]:
        return self.pop(0)
