"""The broker's shell: two ROUTER sockets, a clock and signals around the pure core.

One thread owns the sockets. Nothing in the loop waits except the poll.
"""

import time
from collections.abc import Callable, Sequence

import zmq

from .addresses import AddressError, require_local_or_curve
from .broker_clients import ClientDesk
from .broker_clock import BrokerClock
from .broker_core import BrokerCore
from .broker_records import BrokerConfig, BrokerObserver, Send
from .broker_workers import WorkerDesk
from .joined_sends import joined
from .keys import BrokerKeys
from .router import Router, open_router
from .router_sender import RouterSender, Sent
from .socket_watch import SocketWatch
from .zap import CLIENTS_DOMAIN, WORKERS_DOMAIN, ZapHandler


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
        self._front = open_router(frontend, self._context, own, CLIENTS_DOMAIN, clock)
        self._back = open_router(backend, self._context, own, WORKERS_DOMAIN, clock)
        try:
            self.frontend_addresses = [self._front.bind(address) for address in frontend]
            self.backend_addresses = [self._back.bind(address) for address in backend]
        except (zmq.ZMQError, AddressError):
            self.close()
            raise
        self._senders = {"front": RouterSender(self._front), "back": RouterSender(self._back)}
        self._backlogged = False
        self.beat = clock()  # when the loop last went round; read by the health page
        self._drain_wanted = False

    def request_drain(self) -> None:
        """Stop admitting, finish, then end ``run``. For signal handlers and other threads."""
        self._drain_wanted = True

    def run(self) -> None:
        """Serve until drained."""
        watch = SocketWatch()
        watch.add(self._back)
        watch.add(self._front)
        if self._zap is not None:
            watch.add(self._zap.socket)
        interval = min(self.core.config.heartbeat / 10, 0.05)
        due = self._clock() + interval
        while not self._finished():
            wait = max(due - self._clock(), 0.0)
            if self._backlogged:
                wait = min(wait, 0.005)  # a ROUTER does not tell when one peer reads again
            for socket, most in watch.wait(int(wait * 1000) + 1):
                self._serve(socket, most)
            now = self.beat = self._clock()
            if self._backlogged:
                self._retry()
            if now >= due:
                due = now + interval
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

    def _serve(self, socket: "Router | zmq.Socket[bytes]", most: int) -> None:
        if self._zap is not None and socket is self._zap.socket:
            self._zap.answer_pending()
            return
        router = self._back if socket is self._back else self._front
        for _ in range(most):
            received = router.receive()
            if received is None:
                return
            peer, tenant, frames = received
            if router is self._back:
                sends = self._workers.receive(peer, frames, self._clock())
            else:
                sends = self._clients.receive(peer, frames, tenant, self._clock())
            self._execute(sends)

    def _execute(self, sends: list[Send]) -> None:
        for side, peer, frames in joined(self.core, sends):
            sent = self._senders[side].send(peer, frames)
            if sent is Sent.GONE:
                self._unreachable(side, peer)
            elif sent is Sent.LATER:
                self._backlogged = True

    def _retry(self) -> None:
        for side, sender in self._senders.items():
            for peer in sender.retry_backlogs():
                self._unreachable(side, peer)
        self._backlogged = any(sender.has_backlog for sender in self._senders.values())

    def _unreachable(self, side: str, peer: bytes) -> None:
        if side == "front":
            self._clients.unreachable(peer)
        else:
            self._workers.unreachable(peer)
