"""The worker's shell: one thread owns the engine, one owns the socket; bounded queues between.

Neither waits for the other: the socket's thread merges what it cannot send yet, and runs without
credit are paused, so the queue of events stays short by itself.
"""

import logging
import queue
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from .addresses import allow_ipv6, configure, is_local, receive
from .engine_driver import Command, EngineDied, EngineDriver, EngineReady, Event
from .keys import KeyPair
from .limits import MAX_FRAMES
from .served_engine import EngineLoader
from .worker_core import WorkerCore

logger = logging.getLogger("octavo.worker")

_MAX_COMMANDS = 1024  # each queue has one thread that puts, which looks before it does
_MAX_EVENTS = 256
_AT_ONCE = 8  # messages made before they are sent
_IDLE = 0.05  # seconds between two looks when there is nothing to do
_FULL = 0.001  # seconds between two looks when the queue of events is full


class EngineThread:
    """Loads an engine and drives it. Everything about the engine happens on this thread."""

    def __init__(
        self,
        load: EngineLoader,
        notify: Callable[[], None],
        *,
        figures_every: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.beat = clock()  # when the thread last went round
        self.loaded = False
        self._load = load
        self._notify = notify
        self._figures_every = figures_every
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its present step, and wait a moment for it."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            logger.exception("the engine's thread ended")
            self._put(EngineDied(f"{type(error).__name__}: {error}"))

    def _serve(self) -> None:
        loaded = self._load()
        driver = EngineDriver(loaded)
        self.beat = self._clock()
        self.loaded = True
        self._put(EngineReady(loaded.models, loaded.capacity))
        figures_due = 0.0
        while not self._stopping.is_set():
            self.beat = self._clock()
            self._obey(driver)
            for event in driver.step() if driver.num_runs else []:
                self._put(event)
            if self._clock() >= figures_due:
                figures_due = self._clock() + self._figures_every
                self._put(driver.figures())

    def _obey(self, driver: EngineDriver) -> None:
        """Take the commands that are there; wait for one only if the engine has nothing to do."""
        wait = not driver.has_work
        while wait or not self.commands.empty():
            try:
                command = self.commands.get(block=wait, timeout=_IDLE)
            except queue.Empty:
                return
            wait = False
            for event in driver.handle(command):
                self._put(event)

    def _put(self, event: Event) -> None:
        while self.events.qsize() >= _MAX_EVENTS and not self._stopping.is_set():
            self._notify()
            time.sleep(_FULL)
            self.beat = self._clock()
        self.events.put(event)
        if self.events.qsize() == 1:  # behind others it is taken with them
            self._notify()


class Worker:
    """Connects an engine to a broker. ``run`` returns when it has drained or must not go on."""

    def __init__(
        self,
        address: str,
        load: EngineLoader,
        *,
        keys: tuple[KeyPair, bytes] | None = None,
        drain_limit: float = 30.0,
        hang_limit: float = 120.0,
        heartbeat: float = 1.0,
        orphaned: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_local(address)  # raises for what is no address
        self._address = address
        self._keys = keys
        self._clock = clock
        self._hang_limit = hang_limit
        self._orphaned = orphaned
        self.core = WorkerCore(now=clock(), drain_limit=drain_limit)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wake_reader, self._wake_writer = sockets.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self.engine = EngineThread(load, self._wake, figures_every=heartbeat / 2, clock=clock)
        self._outgoing: deque[list[bytes]] = deque()
        self._drain_wanted = False
        self._poller = zmq.Poller()
        self._poller.register(self._wake_reader, zmq.POLLIN)
        self.beat = clock()

    def request_drain(self) -> None:
        """Finish what runs, then end ``run``. For signal handlers and other threads."""
        self._drain_wanted = True

    def healthy(self) -> bool:
        """Whether the engine and the connection are alive."""
        return self.core.welcomed and not self.core.left and not self._hangs()

    def run(self) -> str | None:
        """Serve. Return None after draining, or why it could not go on."""
        self.engine.start()
        socket = self._connect()
        try:
            while not self.core.left:
                socket = self._round(socket)
            self._say_goodbye(socket)
        finally:
            socket.close(linger=500)
            if self.core.failure is None:
                self.engine.stop()
            self._context.term()
            self._wake_reader.close()
            self._wake_writer.close()
        return self.core.failure

    def _round(self, socket: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
        idle = self.engine.events.empty()
        self._poller.modify(socket, zmq.POLLIN | (zmq.POLLOUT if self._outgoing else 0))
        self._poller.poll(max(int(min(self.core.heartbeat / 10, _IDLE) * 1000), 1) if idle else 0)
        with suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        now = self.beat = self._clock()
        if not self.engine.events.empty():  # tokens wait for nothing else
            self._take_events(now)
            self._send(socket)
        while (frames := receive(socket, MAX_FRAMES)) is not None:
            self.core.broker_frames(frames, now)
        if self._drain_wanted:
            self.core.drain(now)
        if self._orphaned():
            self.core.leave("the process that started it is gone", failed=True)
        if self._hangs():
            self.core.leave(f"its engine made no step for {self._hang_limit:.0f} s", failed=True)
        if self.core.tick(now):
            self._poller.unregister(socket)
            socket.close(linger=0)
            self._outgoing.clear()
            socket = self._connect()
        self._give_commands()
        self._send(socket)
        return socket

    def _connect(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        configure(socket)
        if self._keys is not None:
            own, server = self._keys
            socket.curve_publickey, socket.curve_secretkey = own.public, own.secret
            socket.curve_serverkey = server
        allow_ipv6(socket, self._address)
        socket.connect(self._address)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _take_events(self, now: float) -> None:
        for _ in range(_MAX_EVENTS):
            try:
                event = self.engine.events.get_nowait()
            except queue.Empty:
                return
            self.core.engine_event(event, now)

    def _give_commands(self) -> None:
        room = _MAX_COMMANDS - self.engine.commands.qsize()  # only this thread puts
        for command in self.core.take_commands(room):
            self.engine.commands.put(command)

    def _send(self, socket: "zmq.Socket[bytes]") -> None:
        """Send as far as the queue takes it. While it is full, later rounds are merged."""
        with suppress(zmq.Again):
            while True:
                if not self._outgoing:
                    # a few at a time: the first of many rows need not wait for the last
                    self._outgoing.extend(self.core.collect(_AT_ONCE))
                    if not self._outgoing:
                        return
                socket.send_multipart(self._outgoing[0], zmq.NOBLOCK)
                self._outgoing.popleft()

    def _say_goodbye(self, socket: "zmq.Socket[bytes]") -> None:
        until = self._clock() + self.core.heartbeat
        while self._clock() < until:
            self._send(socket)
            if not self._outgoing:
                return
            time.sleep(0.01)

    def _hangs(self) -> bool:
        return self.engine.loaded and self._clock() - self.engine.beat > self._hang_limit

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_writer.send(b"x")
