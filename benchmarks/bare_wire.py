"""What pyzmq alone takes for a token's way: as many processes, with libzmq's threads between them.

A worker's thread stamps a message for every client and hands it to the thread that owns the
socket; a broker of two ROUTERs passes it on; clients of one process receive it. No message is
read, checked or kept, so this is what the wire's latency is to be compared with.
"""

import itertools
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import zmq

from ipc.addresses import configure

from .beat import Beat, ages_of
from .spawned import spawned

_HEADER = 110  # bytes, as a chunk's
_IDS = bytes(4)


def measure_bare(
    num_clients: int, step_seconds: float, seconds: float, *, spread: bool = False
) -> list[float]:
    """Return the ages of messages on arrival, in milliseconds, after a second of warming up.

    A step has a message for every client, or with ``spread`` for one, in turns.
    """
    together = 1 if spread else num_clients
    numbers = [str(num_clients), str(together), str(step_seconds)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        front, back = f"ipc://{folder}/c", f"ipc://{folder}/w"
        for words in (["broker", front, back], ["worker", back, *numbers]):
            stack.enter_context(spawned("-m", "benchmarks.bare_wire", *words))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        poller = zmq.Poller()
        for number in range(num_clients):
            client = _socket(context, zmq.DEALER)
            client.connect(front)
            client.send_multipart([str(number).encode(), b""])
            poller.register(client, zmq.POLLIN)
        _receive(poller, 1.0)
        return _receive(poller, seconds)


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    configure(socket)
    return socket


def _receive(poller: zmq.Poller, seconds: float) -> list[float]:
    """Receive for ``seconds`` from the first message on."""

    def stamps() -> Iterator[bytes]:
        for client, _ in poller.poll(20):
            yield client.recv_multipart()[0]

    return ages_of(stamps, seconds)


def _broker(front_address: str, back_address: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front, back = _socket(context, zmq.ROUTER), _socket(context, zmq.ROUTER)
    front.bind(front_address)
    back.bind(back_address)
    poller = zmq.Poller()
    poller.register(back, zmq.POLLIN)
    poller.register(front, zmq.POLLIN)
    peers: dict[bytes, bytes] = {}
    while True:
        for socket, _ in poller.poll():
            peer, number, *frames = socket.recv_multipart()
            if socket is front:
                peers[number] = peer
            elif number in peers:
                front.send_multipart([peers[number], *frames])


def _worker(address: str, num_clients: int, together: int, step_seconds: float) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = _socket(context, zmq.DEALER)
    socket.connect(address)
    events: queue.SimpleQueue[tuple[bytes, list[bytes]]] = queue.SimpleQueue()
    bell = os.pipe()
    numbers = [str(number).encode() for number in range(num_clients)]

    def step() -> None:
        beat = Beat(step_seconds)
        for turn in itertools.count():
            first = turn * together % num_clients
            beat.wait()
            stamp = str(time.monotonic_ns()).encode().rjust(_HEADER)
            events.put((stamp, numbers[first : first + together]))
            os.write(bell[1], b"x")

    threading.Thread(target=step, daemon=True).start()
    poller = zmq.Poller()
    poller.register(bell[0], zmq.POLLIN)
    poller.register(socket, zmq.POLLIN)
    while True:
        poller.poll()
        os.read(bell[0], 4096)
        while not events.empty():
            header, those = events.get()
            for number in those:
                socket.send_multipart([number, header, _IDS])


def main(words: list[str]) -> None:
    """Be one of the processes."""
    kind, address, *rest = words
    if kind == "broker":
        _broker(address, rest[0])
    else:
        _worker(address, int(rest[0]), int(rest[1]), float(rest[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
