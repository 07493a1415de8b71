"""What the wire costs: added latency and tokens a second through broker and sockets.

With a fake engine that stamps each token with the time it was made: latency is from there to the
client's hand. Broker and worker are processes of their own, all clients share one more, each with
its own connection. ``--model demo`` compares a model's throughput with the engine alone instead.

    python -m benchmarks.wire [--clients 1 16 256] [--seconds 3] [--model NAME]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import zmq

from ipc.addresses import configure, receive
from ipc.client import Client
from ipc.client_core import ClientCore
from ipc.fake_engine import FakeDelta
from ipc.limits import MAX_FRAMES
from ipc.messages import Chunk, Submit
from ipc.served_engine import LoadedEngine
from ipc.worker import Worker


@dataclass
class StampEngine:
    """Gives every request one token a step; the text is when."""

    step_seconds: float
    running: dict[str, None] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    due: float = 0.0

    @property
    def has_work(self) -> bool:
        return len(self.running) > len(self.paused)

    def submit(self, prompt: Any, params: Any, *, request_id: str, **_: Any) -> str:
        self.running[request_id] = None
        return request_id

    def step(self) -> list[FakeDelta]:
        if self.step_seconds:
            self.due = max(self.due + self.step_seconds, time.monotonic())
            time.sleep(max(self.due - time.monotonic(), 0))
        stamp = str(time.monotonic_ns())
        return [FakeDelta(each, 0, stamp, (7,)) for each in self.running if each not in self.paused]

    def cancel(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        self.paused.discard(request_id)

    def pause(self, request_id: str) -> None:
        self.paused.add(request_id)

    def resume(self, request_id: str) -> None:
        self.paused.discard(request_id)

    def stats(self) -> Mapping[str, Any]:
        return {"num_running": len(self.running)}


def run_worker(address: str, step_seconds: float) -> None:
    def load() -> LoadedEngine:
        return LoadedEngine(StampEngine(step_seconds), dict, ("stamp",), 1024, 1024)

    Worker(address, load).run()


@contextmanager
def service(worker: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A broker and a worker; yields the address for clients and the broker's process id."""
    with tempfile.TemporaryDirectory() as folder:
        front, back = f"ipc://{folder}/c", f"ipc://{folder}/w"
        command = ["-m", "ipc.cli.main", "broker", "--listen", front, "--workers", back]
        words = [word.replace("ADDRESS", back) for word in worker]
        quiet = subprocess.DEVNULL
        broker = subprocess.Popen([sys.executable, *command], stdout=quiet, stderr=quiet)
        other = subprocess.Popen([sys.executable, *words], stderr=quiet)
        try:
            yield front, broker.pid
        finally:
            for process in (other, broker):
                process.kill()
                process.wait()


class Crowd:
    """Clients in one loop, each with a socket and one endless request."""

    def __init__(self, address: str, count: int, window: int) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.poller = zmq.Poller()
        self.clients: dict[Any, ClientCore] = {}
        now = time.monotonic()
        for number in range(count):
            socket = self.context.socket(zmq.DEALER)
            configure(socket)
            socket.connect(address)
            core = ClientCore(now=now)
            params = {"max_tokens": 60_000, "seed": 1}  # 256 of them are within the limits
            core.submit(Submit(f"r{number}", "text", "hello", params=params, window=window), now)
            core.read_all(f"r{number}")
            self.clients[socket] = core
            self.poller.register(socket, zmq.POLLIN)
        self.tokens = 0
        self.chunks = 0
        self.latencies: list[float] = []

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        tick = 0.0
        while (now := time.monotonic()) < until:
            for socket, _ in self.poller.poll(20):
                self._read(socket, self.clients[socket], now)
            if now > tick:
                tick = now + 0.1
                for socket, core in self.clients.items():
                    core.tick(now)
                    self._write(socket, core)

    def _read(self, socket: Any, core: ClientCore, now: float) -> None:
        while (frames := receive(socket, MAX_FRAMES)) is not None:
            core.receive(frames, now)
            arrived = time.monotonic_ns()
            for _, event in core.take_events():
                if isinstance(event, Chunk):
                    piece = event.pieces[0]
                    self.tokens += piece.count
                    self.chunks += 1
                    if piece.count == 1:
                        self.latencies.append((arrived - int(piece.text)) / 1e6)
        self._write(socket, core)

    @staticmethod
    def _write(socket: Any, core: ClientCore) -> None:
        for frames in core.take_outgoing():
            socket.send_multipart(frames)

    def close(self) -> None:
        for socket in self.clients:
            socket.close(linger=0)
        self.context.term()


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of any core (NaN where there is no /proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(num_clients: int, step_seconds: float, seconds: float) -> dict[str, Any]:
    """Let the clients read for a while after a second of warming up."""
    words = ("-m", "benchmarks.wire", "--worker", "ADDRESS", str(step_seconds))
    with service(words) as (address, broker):
        crowd = Crowd(address, num_clients, window=4096)
        crowd.run(2.0)
        crowd.tokens = crowd.chunks = 0
        crowd.latencies.clear()
        used, began = cpu_seconds(broker), time.monotonic()
        crowd.run(seconds)
        took, used = time.monotonic() - began, cpu_seconds(broker) - used
        crowd.close()
    latencies = sorted(crowd.latencies)
    return {
        "tokens_per_second": round(crowd.tokens / took),
        "tokens_per_broker_core_second": round(crowd.tokens / max(used, 1e-9)),
        "chunks_per_broker_core_second": round(crowd.chunks / max(used, 1e-9)),
        "broker_core_share": round(used / took, 3),
        "tenth_ms": percentile(latencies, 0.1),  # what a busy machine blurs least
        "median_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
    }


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return one of the values; None if every chunk had several tokens, and so no one age."""
    return round(ordered[int(len(ordered) * share)], 3) if ordered else None


def model_throughput(model: str, num_requests: int, max_tokens: int) -> None:
    """Print a model's tokens a second with the engine alone and through the service."""
    from engine import Engine, SamplingParams

    prompts = [f"Chapter {number}. It was the" for number in range(num_requests)]
    params = {"max_tokens": max_tokens, "ignore_eos": True, "seed": 1, "temperature": 1.0}
    engine = Engine.load(model, max_rows=8)
    list(engine.generate(prompts[:8], SamplingParams(**params)))
    alone, wired = [], []
    words = ("-m", "ipc.cli.main", "worker", "--connect", "ADDRESS", "--model", model)
    with service([*words, "--max-rows", "8"]) as (address, _), Client(address) as client:
        client.gather(prompts[:8], params)
        for _ in range(3):  # in turn, so that a busy machine is busy for both
            began = time.monotonic()
            list(engine.generate(prompts, SamplingParams(**params)))
            alone.append(num_requests * max_tokens / (time.monotonic() - began))
            began = time.monotonic()
            client.gather(prompts, params)
            wired.append(num_requests * max_tokens / (time.monotonic() - began))
    figures = {
        "engine_tokens_per_second": round(median(alone), 1),
        "wire_tokens_per_second": round(median(wired), 1),
        "lost_percent": round(100 * (1 - median(wired) / median(alone)), 1),
    }
    print(json.dumps({"benchmark": "wire", "model": model, **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--model", help="compare with the engine alone, with this model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(arguments.worker[0], float(arguments.worker[1]))
    elif arguments.model:
        model_throughput(arguments.model, arguments.requests, arguments.max_tokens)
    else:
        for num_clients in arguments.clients:
            for name, step_seconds in (("latency", 0.02), ("throughput", 0.0)):
                figures = measure(num_clients, step_seconds, arguments.seconds)
                line = {"benchmark": "wire", "what": name, "clients": num_clients, **figures}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
