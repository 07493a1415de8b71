"""The broker's shell: two ROUTER sockets, a clock and signals around the pure core.

One thread owns the sockets. Nothing in the loop waits except the poll.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from .addresses import AddressError, require_local_or_curve
from .broker_clients import ClientDesk
from .broker_clock import BrokerClock
from .broker_core import BrokerCore
from .broker_records import BrokerConfig, BrokerObserver, Send, Side
from .broker_workers import WorkerDesk
from .joined_sends import joined
from .keys import BrokerKeys
from .router import Router, open_router
from .router_sender import RouterSender, Sent
from .short_turns import short_turn
from .socket_watch import SocketWatch
from .zap import CLIENTS_DOMAIN, WORKERS_DOMAIN, ZapHandler

_YES = Sent.YES  # looking up an enum's member is Python code, and this is on every token's way


class Broker:
    """Binds at once; ``run`` serves until it has drained. Use it from one thread.

    ``frontend`` and ``backend`` are addresses to bind; ``frontend_addresses`` and
    ``backend_addresses`` say what they became. Raises AddressError for one that is open to other
    machines without ``keys``.
    """

    def __init__(
        self,
        frontend: Sequence[str],
        backend: Sequence[str],
        *,
        config: BrokerConfig | None = None,
        keys: BrokerKeys | None = None,
        observer: BrokerObserver | None = None,
        publish: Callable[[BrokerCore, float], None] = lambda core, now: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_local_or_curve([*frontend, *backend], curve=keys is not None)
        config = config or BrokerConfig()
        self._clock = clock
        self._publish = publish  # takes a snapshot for pages that other threads serve
        self.core = BrokerCore(config, now=clock(), observer=observer)
        self._clients = ClientDesk(self.core)
        self._workers = WorkerDesk(self.core)
        self._timer = BrokerClock(self.core)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap: ZapHandler | None = None
        if keys is not None:
            lists = {CLIENTS_DOMAIN: keys.clients, WORKERS_DOMAIN: keys.workers}
            self._zap = ZapHandler(self._context, lists)
        own = None if keys is None else keys.own
        self._watch = SocketWatch()
        given = (self._context, self._watch, own)
        times: dict[str, Any] = {"clock": clock, "handshake": config.worker_silence}
        self._back = open_router(backend, *given, WORKERS_DOMAIN, **times)
        self._front = open_router(frontend, *given, CLIENTS_DOMAIN, **times)
        if self._zap is not None:
            self._watch.add(self._zap.socket)
        try:
            self.frontend_addresses = [self._front.bind(address) for address in frontend]
            self.backend_addresses = [self._back.bind(address) for address in backend]
        except (zmq.ZMQError, AddressError):
            self.close()
            raise
        self._senders: dict[Side, RouterSender] = {
            "front": RouterSender(self._front),
            "back": RouterSender(self._back),
        }
        self._backlogged = False
        self.beat = clock()  # when the loop last went round; read by the health page
        self._drain_wanted = False

    def request_drain(self) -> None:
        """Stop admitting, finish, then end ``run``. For signal handlers and other threads."""
        self._drain_wanted = True

    def run(self) -> None:
        """Serve until drained."""
        with short_turn():
            self._run()

    def _run(self) -> None:
        watch = self._watch
        interval = min(self.core.config.heartbeat / 10, 0.05)
        due = self._clock() + interval
        while not self._finished():
            wait = max(due - self._clock(), 0.0)
            if self._backlogged:
                wait = min(wait, 0.005)  # a ROUTER does not tell when one peer reads again
            for socket, hint in watch.wait(int(wait * 1000) + 1):
                self._serve(socket, hint)
            now = self.beat = self._clock()
            if self._backlogged:
                self._retry()
            if now >= due:
                due = now + interval
                self._back.tend()
                self._front.tend()
                if self._drain_wanted:
                    self._execute(self.core.drain(now))
                self._execute(self._timer.tick(now))
                self._publish(self.core, now)

    def _finished(self) -> bool:
        until = self.core.draining_until
        if until is None:
            return False
        if next(iter(self.core.jobs()), None) is None:
            return True  # everything ended and arrived
        return self._clock() > until + 2 * self.core.config.heartbeat

    def close(self) -> None:
        """Close the sockets, then the context; what is queued has a moment to go out."""
        for socket in (self._front, self._back):
            socket.close(linger=500)
        if self._zap is not None:
            self._zap.close()
        self._context.term()

    def _serve(self, socket: "Router | zmq.Socket[bytes]", hint: int) -> None:
        if socket is self._back:
            for peer, _, frames in self._back.arrivals(hint):
                self._execute(self._workers.receive(peer, frames, self._clock()))
        elif socket is self._front:
            for peer, tenant, frames in self._front.arrivals(hint):
                self._execute(self._clients.receive(peer, frames, tenant, self._clock()))
        elif self._zap is not None:
            self._zap.answer_pending()

    def _execute(self, sends: Sequence[Send]) -> None:
        if len(sends) > 1:
            sends = joined(self.core, sends)
        for side, peer, frames in sends:
            sent = self._senders[side].send(peer, frames)
            if sent is not _YES:
                self._not_sent(side, peer, sent)

    def _not_sent(self, side: Side, peer: bytes, sent: Sent) -> None:
        if sent is Sent.GONE:
            self._unreachable(side, peer)
        else:
            self._backlogged = True

    def _retry(self) -> None:
        for side, sender in self._senders.items():
            for peer in sender.retry_backlogs():
                self._unreachable(side, peer)
        self._backlogged = any(sender.has_backlog for sender in self._senders.values())

    def _unreachable(self, side: Side, peer: bytes) -> None:
        if side == "front":
            self._clients.unreachable(peer)
        else:
            self._workers.unreachable(peer)
