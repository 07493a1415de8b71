"""The worker's shell: one thread owns the engine, one owns the socket; bounded queues between.

Neither waits for the other: the socket's thread merges what it cannot send yet, and runs without
credit are paused, so the queue of events stays short by itself.
"""

import sys
import time
from collections import deque
from collections.abc import Callable

import zmq

from .addresses import is_local
from .dealer import Dealer, open_dealer
from .doorbell import Doorbell
from .engine_driver import Stepped
from .engine_thread import IDLE, MAX_COMMANDS, EngineThread
from .keys import KeyPair
from .served_engine import EngineLoader
from .short_turns import short_turn
from .socket_watch import SocketWatch
from .worker_core import WorkerCore

_AT_ONCE = 16  # messages made before they are sent
_SWITCH = 0.0002
"""Seconds after which the engine's thread lets the socket's have the interpreter.

A step begins with milliseconds of Python, and the last one's tokens would wait for their end.
"""


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
        self._bell = Doorbell()
        self._watch = SocketWatch(self._bell)
        self.engine = EngineThread(load, self._bell.ring, figures_every=heartbeat / 2, clock=clock)
        self._outgoing: deque[list[bytes]] = deque()
        self._drain_wanted = False
        self._due = clock()
        self._wait = 1  # milliseconds between two looks around
        self.beat = clock()

    def request_drain(self) -> None:
        """Finish what runs, then end ``run``. For signal handlers and other threads."""
        self._drain_wanted = True

    def healthy(self) -> bool:
        """Whether the engine and the connection are alive."""
        return self.core.welcomed and not self.core.left and not self._hangs()

    def run(self) -> str | None:
        """Serve. Return None after draining, or why it could not go on.

        While it serves, the process's threads take turns more often than is Python's default.
        """
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        self.engine.start()  # a thread with turns as usual
        socket = self._connect()
        try:
            with short_turn():
                while not self.core.left:
                    socket = self._round(socket)
                self._say_goodbye(socket)
        finally:
            socket.close(linger=500)
            if self.core.failure is None:
                self.engine.stop()
            sys.setswitchinterval(usual)
        return self.core.failure

    def _round(self, socket: Dealer) -> Dealer:
        events = self.engine.events
        wait = self._wait if events.empty() else 0
        ready = self._watch.wait(wait, writable=bool(self._outgoing))
        now = self.beat = self._clock()
        if not events.empty():  # tokens wait for nothing else
            waiting = events.qsize()  # only this thread takes
            for _ in range(waiting):
                event = events.get()
                if (
                    waiting == 1  # several rounds are merged
                    and type(event) is Stepped
                    and self.core.has_several_readers(event)
                ):  # the broker wakes for the first while the others are made
                    self.core.engine_event(Stepped(event[:1]), now)
                    self._send(socket)
                    event = Stepped(event[1:])
                self.core.engine_event(event, now)
            self._send(socket)
        if not ready and now < self._due:
            return socket
        for _, hint in ready:
            for frames in socket.arrivals(hint):
                self.core.broker_frames(frames, now)
        if now >= self._due:
            socket = self._look_around(socket, now)
        self._give_commands()
        self._send(socket)
        return socket

    def _look_around(self, socket: Dealer, now: float) -> Dealer:
        """Do what is due because time has passed."""
        pause = min(self.core.heartbeat / 10, IDLE)
        self._due, self._wait = now + pause, max(int(pause * 1000), 1)
        if self._drain_wanted:
            self.core.drain(now)
        if self._orphaned():
            self.core.leave("the process that started it is gone", failed=True)
        if self._hangs():
            self.core.leave(f"its engine made no step for {self._hang_limit:.0f} s", failed=True)
        socket.tend()
        if self.core.tick(now):
            socket.close(linger=0)
            self._outgoing.clear()
            socket = self._connect()
        return socket

    def _connect(self) -> Dealer:
        return open_dealer(self._address, self._watch, self._keys, self._clock)

    def _give_commands(self) -> None:
        room = MAX_COMMANDS - self.engine.commands.qsize()  # only this thread puts
        for command in self.core.take_commands(room):
            self.engine.commands.put(command)

    def _send(self, socket: Dealer) -> None:
        """Send as far as the queue takes it. While it is full, later rounds are merged."""
        try:  # not suppress(), which is Python code on every token's way
            while True:
                if not self._outgoing:
                    # a few at a time: the first of many rows need not wait for the last
                    self._outgoing.extend(self.core.collect(_AT_ONCE))
                    if not self._outgoing:
                        return
                socket.send(self._outgoing[0])
                self._outgoing.popleft()
        except zmq.Again:
            return

    def _say_goodbye(self, socket: Dealer) -> None:
        until = self._clock() + self.core.heartbeat
        while self._clock() < until:
            self._send(socket)
            if not self._outgoing:
                return
            time.sleep(0.01)

    def _hangs(self) -> bool:
        return self.engine.loaded and self._clock() - self.engine.beat > self._hang_limit
