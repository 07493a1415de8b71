"""What Unix sockets alone take for tokens' ways: the same processes, connections and system calls.

A worker's thread stamps a message for every client and rings for the thread that owns the socket,
which sends them in two pieces; a broker reads, cuts and sends each to its client's connection;
clients of one process wait by epoll and read. No message is read, checked or kept: Python cannot
do less between the same system calls.
"""

import os
import select
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator

from ipc.doorbell import Doorbell
from ipc.short_turns import short_turn

from .beat import Beat, ages_of
from .spawned import spawned

_SIZE = 150  # bytes of a message, as a chunk's
_NUMBER = 4
_STAMP = 20
_READ = 1 << 16


def measure_unix(num_clients: int, step_seconds: float, seconds: float) -> list[float]:
    """Return the ages of messages on arrival, in milliseconds, after a second of warming up."""
    with tempfile.TemporaryDirectory() as folder:
        path, module = f"{folder}/s", "benchmarks.bare_unix"
        numbers = [str(num_clients), str(step_seconds)]
        with spawned("-m", module, "broker", path, numbers[0]):
            while not os.path.exists(path):
                time.sleep(0.01)
            clients = [_connected(path, str(number)) for number in range(num_clients)]
            with spawned("-m", module, "worker", path, *numbers), short_turn():
                _receive(clients, 1.0)
                return _receive(clients, seconds)


def _connected(path: str, name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    while made.connect_ex(path) != 0:
        time.sleep(0.01)
    made.sendall(name.encode().ljust(_SIZE))
    made.setblocking(False)
    return made


def _receive(clients: list[socket.socket], seconds: float) -> list[float]:
    """Receive for ``seconds`` from the first message on."""
    poll = select.epoll()
    owners = {client.fileno(): client for client in clients}
    for fd in owners:
        poll.register(fd, select.EPOLLIN)

    def stamps() -> Iterator[bytes]:
        for fd, _ in poll.poll(0.02):
            yield owners[fd].recv(_READ)[_NUMBER : _NUMBER + _STAMP]

    ages = ages_of(stamps, seconds)
    poll.close()
    return ages


def _broker(path: str, num_clients: int) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(num_clients + 1)
    clients: dict[bytes, socket.socket] = {}
    worker: socket.socket | None = None
    while worker is None:
        made, _ = listening.accept()
        name = made.recv(_SIZE).rstrip()
        if name == b"worker":
            worker = made
        else:
            clients[name.ljust(_NUMBER)] = made
    poll = select.epoll()
    poll.register(worker.fileno(), select.EPOLLIN)
    while True:
        poll.poll()
        data = worker.recv(_READ)
        for start in range(0, len(data), _SIZE):
            message = data[start : start + _SIZE]
            clients[message[:_NUMBER]].send(message)


def _worker(path: str, num_clients: int, step_seconds: float) -> None:
    made = _connected(path, "worker")
    heads = [str(number).encode().ljust(_NUMBER) for number in range(num_clients)]
    half = -(-num_clients // 2)
    bell = Doorbell()
    stamps: deque[bytes] = deque()

    def step() -> None:
        beat = Beat(step_seconds)
        while True:
            beat.wait()
            stamps.append(str(time.monotonic_ns()).encode().rjust(_STAMP))
            bell.ring()

    threading.Thread(target=step, daemon=True).start()
    poll = select.epoll()
    poll.register(bell.fd, select.EPOLLIN | select.EPOLLET)
    made.setblocking(True)
    while True:
        poll.poll()
        while stamps:
            stamp = stamps.popleft()
            for some in (heads[:half], heads[half:]):
                made.sendall(b"".join([(head + stamp).ljust(_SIZE) for head in some]))


def main(words: list[str]) -> None:
    """Be one of the processes."""
    kind, path, num_clients, *rest = words
    with short_turn():
        if kind == "broker":
            _broker(path, int(num_clients))
        else:
            _worker(path, int(num_clients), float(rest[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
