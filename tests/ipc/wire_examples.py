"""One message of every type, with every field set; and ways to spoil frames."""

import random

import msgpack

from ipc import messages as m
from ipc.token_ids import pack_ids

PIECE = m.Piece(
    index=1,
    count=2,
    text="zwei",
    logprobs=((5, -0.5, ((5, -0.5), (6, -1.5))), (7, -2.0, ())),
    reason="stop",
    usage={"prompt_tokens": 3, "completion_tokens": 2},
    prompt_logprobs=(None, (5, -0.5, ((6, -0.25),))),
    prompt_start=2,
)
EXAMPLES: tuple[m.Message, ...] = (
    m.Hello(
        role="worker",
        name="w1",
        models=("demo", "draft"),
        capacity=8,
        runs=(m.RunState("e-1", "t", "c", "r", first=0, seq=4, tokens=9, seed=2**64 - 1),),
        bundles=True,
    ),
    m.Welcome(epoch="e", heartbeat=0.5, models=("demo",), bundles=True),
    m.Submit(
        id="r",
        kind="messages",
        messages=(m.ChatMessage("system", "be brief"), m.ChatMessage("user", "hé")),
        model="demo",
        params={"max_tokens": 5, "temperature": 0.5, "stop": ["a"], "logit_bias": {"7": -1.0}},
        window=9,
        linger=0.5,
        resume=True,
        again=True,
        received=3,
        run="e-1",
        emitted_ids=pack_ids([1, 2**32 - 1]),
    ),
    m.Run(
        run="e-2",
        tenant="t",
        client="c",
        id="r",
        kind="tokens",
        params={"seed": 1},
        window=70_000,
        linger=0.5,
        seq=2,
        prompt_ids=pack_ids(range(5)),
        emitted_ids=pack_ids([9]),
    ),
    m.Accepted(id="r", seed=7),
    m.Chunk("r", 3, 8, (PIECE, m.Piece(0, 1, "eins")), "e-1", pack_ids([5, 7, 9])),
    m.Done("r", 4, 7, (m.SampleEnd(0, "length", {"prompt_tokens": 3}, "why"),), "e-1"),
    m.Error("busy", "full", True, id="r", seq=4, retry_after=0.5, progress=3, run="e-1"),
    m.Credit("r", 2, 100, True, "e-1"),
    m.Cancel("r", "e-1"),
    m.Ack("r", "e-1"),
    m.Ping(3),
    m.Pong(3),
    m.Stats({"a": 1, "b": 0.5, "c": "d", "e": [1, 2.5]}, ({"name": "w"},)),
    m.Drain("why", True),
)
ALL_TYPES = tuple(type(example) for example in EXAMPLES)


def spoil(frames: list[bytes], chance: random.Random) -> list[bytes]:
    """Return ``frames`` with one to three faults of kinds that hit different checks."""
    spoiled = [bytearray(frame) for frame in frames]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(spoiled))
        frame = spoiled[at]
        kind = chance.randrange(8)
        if kind == 0 and frame:  # another byte
            frame[chance.randrange(len(frame))] = chance.getrandbits(8)
        elif kind == 1:  # cut short
            del frame[chance.randint(0, len(frame)) :]
        elif kind == 2:  # something behind
            frame += chance.randbytes(chance.randint(1, 9))
        elif kind == 3:  # something in between, often a container that claims to be huge
            where = chance.randint(0, len(frame))
            frame[where:where] = chance.choice(
                [
                    b"\xdd\xff\xff\xff\xff",
                    b"\xdf\xff\xff\xff\xff",
                    b"\xc9\x00\x00\x00\x04\x01abcd",
                    b"\xdb\x7f\xff\xff\xff",
                    b"\x91" * 600,
                    b"\xc1",
                    b"\xc0",
                ]
            )
        elif kind == 4 and len(spoiled) > 1:  # a frame missing
            del spoiled[at]
        elif kind == 5:  # a frame too many
            spoiled.insert(at, bytearray(chance.randbytes(chance.choice([0, 3, 4, 8]))))
        elif kind == 6:  # rubbish
            spoiled[at] = bytearray(chance.randbytes(chance.randint(0, 60)))
        else:  # a field changed, missing or of another type
            spoiled[0] = bytearray(_change_field(bytes(spoiled[0]), chance))
    return [bytes(frame) for frame in spoiled]


def _change_field(header: bytes, chance: random.Random) -> bytes:
    try:
        fields = dict(msgpack.unpackb(header))
        name = chance.choice(list(fields))
    except Exception:
        return header
    values = (None, True, -1, 2**63, 1e308, float("nan"), "", "x" * 300, b"\x00", [], {}, [[]])
    if chance.random() < 0.3:
        del fields[name]
    else:
        fields[name] = chance.choice(
            [*values, msgpack.ExtType(4, b"a"), "\udce4".encode("utf-8", "surrogatepass")]
        )
    return msgpack.packb(fields)
