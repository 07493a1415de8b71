"""Brokers, workers and clients as processes of their own, for tests that kill them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipc.client import Client

HEARTBEAT = 0.3
ROOT = Path(__file__).parents[2]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0, why: str = "") -> Any:
    """Return the condition's value once it is true; AssertionError after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {seconds} s: {why or condition}"
        time.sleep(0.02)


class Process:
    """One process; its output goes to files."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._out = log.with_suffix(".out")
        self.log = log.with_suffix(".err")
        with self._out.open("wb") as out, self.log.open("ab") as err:
            self.popen = subprocess.Popen(
                [sys.executable, *words],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                start_new_session=True,
            )

    def first_line(self) -> dict[str, Any]:
        """Return the JSON that a service prints once it listens."""

        def line() -> str:
            assert self.popen.poll() is None, self.log.read_text()
            text = self._out.read_text()
            return text.splitlines()[0] if "\n" in text else ""

        return json.loads(wait_until(line, why="the service listens"))

    def output(self) -> str:
        return self._out.read_text()

    def signal(self, number: int) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """End it the hard way, whatever state it is in."""
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def ends(self, seconds: float = 60.0) -> int:
        """Wait for it; return its exit status."""
        return self.popen.wait(seconds)


class Service:
    """A broker with workers, on sockets in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frontend = f"ipc://{folder}/c"
        self.backend = f"ipc://{folder}/w"
        self.processes: list[Process] = []
        self.clients: list[Client] = []
        self.broker: Process | None = None
        self.heartbeat = HEARTBEAT

    def start(self, command: str, *words: str) -> Process:
        log = self.folder / f"{command}{len(self.processes)}"
        process = Process(["-m", "ipc.cli.main", command, *words], log)
        self.processes.append(process)
        return process

    def start_broker(self, *words: str) -> Process:
        self.broker = self.start(
            "broker",
            *("--listen", self.frontend, "--workers", self.backend),
            *("--heartbeat", str(self.heartbeat), *words),
        )
        self.broker.first_line()
        return self.broker

    def start_worker(self, model: str = "fake:step=0.002,rows=8", *words: str) -> Process:
        beat = ("--heartbeat", str(self.heartbeat))
        return self.start("worker", "--connect", self.backend, "--model", model, *beat, *words)

    def client(self, **options: Any) -> Client:
        client = Client(self.frontend, **options)
        self.clients.append(client)
        return client

    def figures(self) -> dict[str, Any]:
        return dict(self.clients[0].stats(60).stats)

    def worker_figures(self) -> list[dict[str, Any]]:
        return [dict(worker) for worker in self.clients[0].stats(60).workers]

    def wait_for_workers(self, count: int) -> None:
        wait_until(
            lambda: sum(w["connected"] for w in self.worker_figures()) == count,
            why=f"{count} workers are there",
        )

    def wait_until_idle(self) -> None:
        """Every request is forgotten, at the broker and at every worker."""
        wait_until(self._is_idle, 60, why="everything is given back")

    def _is_idle(self) -> bool:
        if self.figures()["requests_admitted"]:
            return False
        return all(w.get("runs", 0) == 0 and w["load"] == 0 for w in self.worker_figures())

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.go_on()
            process.kill()


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or (
        Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    )
