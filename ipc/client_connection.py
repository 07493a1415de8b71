"""A client's thread: it owns the socket and the core; users' threads leave jobs and get events."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from .addresses import is_local
from .client_core import ClientConfig, ClientCore, StreamEvent
from .dealer import Dealer, open_dealer
from .doorbell import Doorbell
from .keys import KeyPair, load_pair, load_public
from .messages import Error, Stats, Submit
from .short_turns import short_turn
from .socket_watch import SocketWatch

logger = logging.getLogger("octavo.client")

_MAX_JOBS = 10_000
Sink = Callable[[StreamEvent], None]
"""Takes a request's events, on the connection's thread. It must not wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Who reads one request. Others may ask for its id: they are refused, or come later."""

    id: str
    sink: Sink


class ConnectionClosedError(RuntimeError):
    """The client was closed, or its thread has died."""


class ClientConnection:
    """Shared by the clients with and without asyncio."""

    def __init__(
        self,
        address: str,
        *,
        key: str | Path | KeyPair | None = None,
        server_key: str | Path | bytes | None = None,
        config: ClientConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_local(address)  # raises for what is no address
        if (key is None) != (server_key is None):
            raise ValueError("key and server_key go together: give both, or neither")
        self._address = address
        self._key = load_pair(Path(key)) if isinstance(key, str | Path) else key
        self._server_key = (
            load_public(Path(server_key)) if isinstance(server_key, str | Path) else server_key
        )
        self._clock = clock
        self._core = ClientCore(now=clock(), config=config)
        self._jobs: deque[Callable[[], None]] = deque()  # bounded by _post
        self._readers: dict[str, Reader] = {}  # of the requests that have not ended
        self._stats_waiters: list[queue.SimpleQueue[Stats | None]] = []
        self._bell = Doorbell()
        self._closing = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="octavo client", daemon=True)
        self._thread.start()

    # For users' threads

    def submit(
        self, submit: Submit, sink: Sink, timeout: float | None, *, wake: bool = True
    ) -> Reader:
        """Send a request; ``sink`` gets its events.

        Without ``wake`` it is sent when the thread wakes next: soon, or because of ``wake``.
        """
        reader = Reader(submit.id, sink)

        def start() -> None:
            if submit.id in self._readers:
                text = f"the request id {submit.id!r} is in use; choose another"
                sink(Error("bad_request", text, False, id=submit.id))
                return
            self._readers[submit.id] = reader
            self._core.submit(submit, self._clock(), timeout=timeout)

        self._post(start, wake=wake)
        return reader

    def wake(self) -> None:
        """Send what was left for the thread without waking it."""
        self._bell.ring()

    def consume(self, reader: Reader, tokens: int) -> None:
        """The reader has taken so many tokens more."""
        self._post_for(reader, lambda: self._core.consume(reader.id, tokens))

    def read_all(self, reader: Reader, *, wake: bool = True) -> None:
        """The reader takes whatever comes."""
        self._post_for(reader, lambda: self._core.read_all(reader.id), wake=wake)

    def cancel(self, reader: Reader) -> None:
        """End a request. Harmless when it has ended, or was refused, whoever has its id now."""
        self._post_for(reader, lambda: self._core.cancel(reader.id))

    def stats(self, timeout: float) -> Stats:
        """Ask the broker for its figures. Raises TimeoutError."""
        waiter: queue.SimpleQueue[Stats | None] = queue.SimpleQueue()

        def ask() -> None:
            self._stats_waiters.append(waiter)
            self._core.ask_stats()

        self._post(ask)
        try:
            answer = waiter.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self._address} did not answer within {timeout} s") from None
        if answer is None:
            raise ConnectionClosedError("the client was closed")
        return answer

    def close(self) -> None:
        """End every request with code "closed", then the thread."""
        self._closing.set()
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _post_for(self, reader: Reader, job: Callable[[], None], *, wake: bool = True) -> None:
        """Leave a job that is done if the reader's request has not ended by then."""

        def do() -> None:
            if self._readers.get(reader.id) is reader:
                job()

        self._post(do, may_fail=True, wake=wake)

    def _post(self, job: Callable[[], None], *, may_fail: bool = False, wake: bool = True) -> None:
        own = threading.current_thread() is self._thread  # a handle may be collected anywhere
        while len(self._jobs) >= _MAX_JOBS and not own and not self._closed:
            time.sleep(0.001)
        self._jobs.append(job)
        # What is appended before _closed is set is still done; so look only afterwards.
        if self._closed and not may_fail:
            raise ConnectionClosedError("the client was closed")
        if wake:
            self._bell.ring()

    # The connection's thread

    def _run(self) -> None:
        reason = "the client was closed"
        try:
            with short_turn():
                self._serve()
        except Exception as error:
            logger.exception("the client's thread ended")
            reason = f"the client's thread ended: {error!r}"
        self._closed = True
        with suppress(Exception):
            self._do_jobs()
        self._core.fail("closed", reason)
        self._deliver()
        for reader in self._readers.values():  # what the core never got to know
            reader.sink(Error("closed", reason, True, id=reader.id))
        for waiter in self._stats_waiters:
            waiter.put(None)

    def _serve(self) -> None:
        watch = SocketWatch(self._bell)
        socket = self._connect(watch)
        unsent: list[list[bytes]] = []
        wait, due = 1, self._clock()
        try:
            while not self._closing.is_set():
                ready = watch.wait(wait, writable=bool(unsent))
                now = self._clock()
                for _, hint in ready:
                    for frames in socket.arrivals(hint):
                        self._core.receive(frames, now)
                        self._deliver()  # before anything else: somebody waits for it
                self._do_jobs()
                if now >= due:
                    pause = min(self._core.heartbeat / 10, 0.05)
                    wait, due = max(int(pause * 1000), 1), now + pause
                    socket.tend()
                    if self._core.tick(now):
                        socket.close(linger=0)
                        unsent.clear()
                        socket = self._connect(watch)
                unsent += self._core.take_outgoing()
                self._send(socket, unsent)
                self._deliver()
            self._cancel_open(socket)
        finally:
            socket.close(linger=200)

    def _cancel_open(self, socket: Dealer) -> None:
        for request_id in list(self._readers):
            self._core.cancel(request_id)
        self._send(socket, list(self._core.take_outgoing()))

    def _connect(self, watch: SocketWatch) -> Dealer:
        keys = None
        if self._key is not None and self._server_key is not None:
            keys = (self._key, self._server_key)
        return open_dealer(self._address, watch, keys, self._clock)

    def _do_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    @staticmethod
    def _send(socket: Dealer, unsent: list[list[bytes]]) -> None:
        sent = 0
        with suppress(zmq.Again):
            for frames in unsent:
                socket.send(frames)
                sent += 1
        del unsent[:sent]

    def _deliver(self) -> None:
        for request_id, event in self._core.take_events():
            reader = self._readers.get(request_id)
            if reader is None:
                continue
            if type(event).__name__ in ("Done", "Error"):
                del self._readers[request_id]
            try:
                reader.sink(event)
            except Exception:  # one reader's fault must not stop the others
                logger.exception("a request's reader failed")
        for stats in self._core.take_stats():
            waiters: list[Any] = self._stats_waiters
            self._stats_waiters = []
            for waiter in waiters:
                waiter.put(stats)
