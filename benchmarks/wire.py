"""What the wire costs: added latency and tokens a second through broker and sockets.

With a fake engine that stamps each token with the time it was made: latency is from there to the
client's hand. Broker and worker are processes of their own, all clients share one more, each with
its own connection.

"throughput" lets the engine make tokens as fast as they are taken. How old a token is on arrival
then says nothing of the wire: it is what is on its way, which credit bounds, divided by the
throughput. "latency" makes a token for every client once in a while (``--gaps``, in milliseconds),
well below that. All clients' tokens of one round leave together, so that with many clients most of
a token's age is the others before it; with ``--spread`` they come one after another in equal steps,
as from many workers, and what is left is a token's own way. Beside it stands what bare programs of
the same processes take, measured in turns: one by pyzmq's sockets (benchmarks/bare_wire.py), and,
where tokens leave together, one by Unix sockets alone (benchmarks/bare_unix.py).

How rarely tokens come matters: after some milliseconds others have the processor's caches, and
what wakes fetches its code from memory.

``--model demo`` compares a model's throughput with the engine alone instead, the same requests in
interleaved pairs. The client gathers answers, as the engine alone gives them; with ``--linger 0``
every round's tokens come to it at once. What each process used of the cores stands beside it: the
client's part is no cost of the service, but it runs on the same machine.

    python -m benchmarks.wire [--clients 1 16 256] [--seconds 3] [--gaps 2 5 10 20] [--spread]
    python -m benchmarks.wire --model demo [--pairs 15] [--max-rows 8] [--linger 0]
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ipc.client import Client
from ipc.client_core import ClientCore
from ipc.dealer import Dealer, open_dealer
from ipc.limits import ANSWER_LINGER
from ipc.messages import Chunk, Submit
from ipc.short_turns import short_turn
from ipc.socket_watch import SocketWatch

from .bare_unix import measure_unix
from .bare_wire import measure_bare
from .pairs import measure_pairs
from .spawned import spawned
from .stamp_engine import Pace

GAPS = (2.0, 5.0, 10.0, 20.0)  # milliseconds between a client's tokens
MOST_CHUNKS = 8000  # a second, where latency is measured: well below what can get through
TURNS = 3  # of the wire and of bare sockets
START_SECONDS = 60.0  # the longest that broker and worker take to start


class Service(NamedTuple):
    """The address for clients, and process ids."""

    address: str
    broker: int
    worker: int

    def used(self) -> "Used":
        """Return what its processes and this one have used."""
        return Used(*map(cpu_seconds, (self.worker, self.broker, os.getpid())))


class Used(NamedTuple):
    """Seconds of any core. The client is the process that measures."""

    worker: float
    broker: float
    client: float

    def since(self, before: "Used") -> "Used":
        """Return what was used since then."""
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


@contextmanager
def service(worker: Sequence[str]) -> Iterator[Service]:
    """Start a broker and a worker."""
    with tempfile.TemporaryDirectory() as folder:
        front, back = f"ipc://{folder}/c", f"ipc://{folder}/w"
        command = ["-m", "ipc.cli.main", "broker", "--listen", front, "--workers", back]
        words = [word.replace("ADDRESS", back) for word in worker]
        quiet = subprocess.DEVNULL
        with (
            spawned(*command, stdout=quiet, stderr=quiet) as broker,
            spawned(*words, stderr=quiet) as other,
        ):
            yield Service(front, broker.pid, other.pid)


class Crowd:
    """Clients in one loop, each with a socket and one endless request."""

    def __init__(self, address: str, count: int, window: int) -> None:
        self.watch = SocketWatch()
        self.clients: dict[Dealer, ClientCore] = {}
        now = time.monotonic()
        for number in range(count):
            socket = open_dealer(address, self.watch)
            core = ClientCore(now=now)
            params = {"max_tokens": 60_000, "seed": 1}  # 256 of them are within the limits
            core.submit(Submit(f"r{number}", "text", "hello", params=params, window=window), now)
            core.read_all(f"r{number}")
            self.clients[socket] = core
        self.tokens = 0
        self.chunks = 0
        self.ages: list[float] = []  # of tokens on arrival, in milliseconds

    def run(self, seconds: float) -> None:
        """Read; as a client's own thread does it (ipc/client_connection.py)."""
        with short_turn():
            self._run(seconds)

    def _run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        tick = 0.0
        while (now := time.monotonic()) < until:
            for socket, hint in self.watch.wait(20):
                self._read(socket, hint, now)
            if now > tick:
                tick = now + 0.1
                for socket, core in self.clients.items():
                    socket.tend()
                    core.tick(now)
                    self._write(socket, core)

    def _read(self, socket: Dealer, hint: int, now: float) -> None:
        core = self.clients[socket]
        for frames in socket.arrivals(hint):
            core.receive(frames, now)
            here = time.monotonic_ns()
            for _, event in core.take_events():
                if isinstance(event, Chunk):
                    piece = event.pieces[0]
                    self.tokens += piece.count
                    self.chunks += 1
                    self.ages += [(here - int(made)) / 1e6 for made in piece.text.split()]
        self._write(socket, core)

    @staticmethod
    def _write(socket: Dealer, core: ClientCore) -> None:
        for frames in core.take_outgoing():
            socket.send(frames)

    def close(self) -> None:
        for socket in self.clients:
            socket.close()


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of any core (NaN where there is no /proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """What a crowd got, and what was used for it."""

    crowd: Crowd
    seconds: float
    used: Used

    def throughput(self) -> dict[str, Any]:
        used = max(self.used.broker, 1e-9)
        return {
            "tokens_per_second": round(self.crowd.tokens / self.seconds),
            "chunks_per_second": round(self.crowd.chunks / self.seconds),
            "tokens_per_broker_core_second": round(self.crowd.tokens / used),
            "chunks_per_broker_core_second": round(self.crowd.chunks / used),
            **{
                f"{name}_core_share": round(seconds / self.seconds, 3)
                for name, seconds in self.used._asdict().items()
            },
        }


def latency(ages: list[float]) -> dict[str, float]:
    """Return what stands for ages in milliseconds; the tenth is what a busy machine blurs least."""
    ages = sorted(ages)
    shares = {"tenth_ms": 0.1, "median_ms": 0.5, "p99_ms": 0.99}
    return {name: round(ages[int(len(ages) * share)], 3) for name, share in shares.items()}


def measure(num_clients: int, pace: Pace, seconds: float) -> Measured:
    """Let the clients read for a while, after a second of warming up."""
    words = ("-m", "benchmarks.stamp_engine", "ADDRESS", *pace.words())
    with service(words) as served:
        crowd = Crowd(served.address, num_clients, window=4096)
        until = time.monotonic() + START_SECONDS
        while not crowd.chunks and time.monotonic() < until:
            crowd.run(0.1)
        crowd.run(1.0)
        crowd.tokens = crowd.chunks = 0
        crowd.ages.clear()
        before, began = served.used(), time.monotonic()
        crowd.run(seconds)
        took, used = time.monotonic() - began, served.used().since(before)
        crowd.close()
    return Measured(crowd, took, used)


def measure_throughput(num_clients: int, seconds: float) -> None:
    """Print what gets through at full speed."""
    full = measure(num_clients, Pace(0.0), seconds)
    figures = {"clients": num_clients, "what": "throughput", **full.throughput()}
    print(json.dumps({"benchmark": "wire", **figures}), flush=True)


def measure_latency(num_clients: int, gap: float, seconds: float, *, spread: bool) -> None:
    """Print how old tokens are when each client gets one every ``gap`` seconds."""
    pace = Pace.of(gap, num_clients, spread=spread)
    ages: list[float] = []
    bare: list[float] = []
    unix: list[float] = []
    for _ in range(TURNS):
        slow = measure(num_clients, pace, seconds)
        ages += slow.crowd.ages
        bare += measure_bare(num_clients, pace.step_seconds, seconds, spread=spread)
        if not spread:
            unix += measure_unix(num_clients, pace.step_seconds, seconds)
    figures = {
        "clients": num_clients,
        "what": "latency",
        "gap_ms": round(1000 * gap, 2),
        "spread": spread,
        **slow.throughput(),
        **latency(ages),
        "bare": latency(bare),
        **({"unix": latency(unix)} if unix else {}),
    }
    print(json.dumps({"benchmark": "wire", **figures}), flush=True)


def possible_gaps(num_clients: int, milliseconds: Sequence[float]) -> list[float]:
    """Return the gaps in seconds, none shorter than so many clients can have."""
    return sorted({max(gap / 1000, num_clients / MOST_CHUNKS) for gap in milliseconds})


def measure_model(
    model: str,
    *,
    num_requests: int,
    max_tokens: int,
    max_rows: int,
    num_pairs: int,
    linger: float,
) -> None:
    """Print a model's tokens a second through the service and with the engine alone."""
    from engine import Engine, SamplingParams

    prompts = [f"Chapter {number}. It was the" for number in range(num_requests)]
    params = {"max_tokens": max_tokens, "ignore_eos": True, "seed": 1, "temperature": 1.0}
    engine = Engine.load(model, max_rows=max_rows)
    words = ("-m", "ipc.cli.main", "worker", "--connect", "ADDRESS", "--model", model)
    words += ("--max-rows", str(max_rows))

    def rate(answer: Callable[[], int]) -> float:
        began = time.monotonic()
        num_tokens = answer()
        assert num_tokens == num_requests * max_tokens, num_tokens
        return num_tokens / (time.monotonic() - began)

    def alone() -> int:
        answers = engine.generate(prompts, SamplingParams(**params))
        return sum(len(answer.token_ids) for answer in answers)

    used: list[Used] = []
    with service(words) as served, Client(served.address) as client:

        def wired() -> int:
            before = served.used()
            answers = client.gather(prompts, params, linger=linger)
            num_tokens = sum(len(each.token_ids) for each in answers)
            used.append(served.used().since(before))
            return num_tokens

        pairs = measure_pairs(lambda: rate(wired), lambda: rate(alone), num_pairs)
    figures = {
        "rows": max_rows,
        "linger": linger,
        "pairs": pairs.num_pairs,
        "engine_tokens_per_second": round(pairs.theirs, 1),
        "wire_tokens_per_second": round(pairs.ours, 1),
        "lost_percent": round(100 * (1 - pairs.ratio), 1),
        "interval": [round(100 * (1 - pairs.high), 1), round(100 * (1 - pairs.low), 1)],
        "core_seconds": Used(
            *(round(median(each), 2) for each in zip(*used, strict=True))
        )._asdict(),
    }
    print(json.dumps({"benchmark": "wire", "model": model, **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--gaps", type=float, nargs="+", default=list(GAPS), help="milliseconds")
    parser.add_argument("--spread", action="store_true", help="clients' tokens come one by one")
    parser.add_argument("--model", help="compare with the engine alone, with this model")
    parser.add_argument("--pairs", type=int, default=15, help="of runs with the model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--linger", type=float, default=ANSWER_LINGER, help="seconds")
    arguments = parser.parse_args()
    if arguments.model:
        measure_model(
            arguments.model,
            num_requests=arguments.requests,
            max_tokens=arguments.max_tokens,
            max_rows=arguments.max_rows,
            num_pairs=arguments.pairs,
            linger=arguments.linger,
        )
    else:
        for num_clients in arguments.clients:
            if not arguments.spread:
                measure_throughput(num_clients, arguments.seconds)
            for gap in possible_gaps(num_clients, arguments.gaps):
                measure_latency(num_clients, gap, arguments.seconds, spread=arguments.spread)


if __name__ == "__main__":
    main()
