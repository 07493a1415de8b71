"""The broker's shell: two ROUTER sockets, a clock and signals around the pure core.

One thread owns the sockets. Nothing in the loop waits except the poll.
"""

import time
from collections.abc import Callable, Sequence

import zmq

from .addresses import allow_ipv6, configure, require_local_or_curve
from .broker_clients import ClientDesk
from .broker_clock import BrokerClock
from .broker_core import BrokerCore
from .broker_records import BrokerConfig, BrokerObserver, Send
from .broker_workers import WorkerDesk
from .keys import BrokerKeys
from .limits import MAX_FRAMES
from .router_sender import RouterSender, Sent
from .zap import CLIENTS_DOMAIN, WORKERS_DOMAIN, ZapHandler

_BATCH = 64  # messages of one side before the other has its turn


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
        self._front = self._socket(keys, CLIENTS_DOMAIN)
        self._back = self._socket(keys, WORKERS_DOMAIN)
        try:
            self.frontend_addresses = [_bind(self._front, address) for address in frontend]
            self.backend_addresses = [_bind(self._back, address) for address in backend]
        except zmq.ZMQError:
            self.close()
            raise
        self._senders = {"front": RouterSender(self._front), "back": RouterSender(self._back)}
        self.beat = clock()  # when the loop last went round; read by the health page
        self._drain_wanted = False

    def _socket(self, keys: BrokerKeys | None, domain: bytes) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        configure(socket)
        socket.router_mandatory = 1
        if keys is not None:
            socket.curve_server = 1
            socket.curve_publickey = keys.own.public
            socket.curve_secretkey = keys.own.secret
            socket.zap_domain = domain
        return socket

    def request_drain(self) -> None:
        """Stop admitting, finish, then end ``run``. For signal handlers and other threads."""
        self._drain_wanted = True

    def run(self) -> None:
        """Serve until drained."""
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._back, zmq.POLLIN)
        if self._zap is not None:
            poller.register(self._zap.socket, zmq.POLLIN)
        interval = min(self.core.config.heartbeat / 10, 0.05)
        due = self._clock() + interval
        while not self._finished():
            wait = max(due - self._clock(), 0.0)
            if any(sender.has_backlog for sender in self._senders.values()):
                wait = min(wait, 0.005)  # a ROUTER does not tell when one peer reads again
            poller.poll(int(wait * 1000) + 1)
            if self._zap is not None:
                self._zap.answer_pending()
            self._serve(self._back, self._receive_worker)
            self._serve(self._front, self._receive_client)
            now = self.beat = self._clock()
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

    def _serve(self, socket: "zmq.Socket[bytes]", receive: Callable[[bytes], list[Send]]) -> None:
        for _ in range(_BATCH):
            try:
                peer = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._execute(receive(peer))

    def _receive_client(self, peer: bytes) -> list[Send]:
        tenant = ""
        frames: list[bytes] = []
        if not self._clients.knows(peer) and self._front.getsockopt(zmq.RCVMORE):
            frame = self._front.recv(zmq.NOBLOCK, copy=False)
            tenant = _user_id(frame)
            frames.append(frame.bytes)
        self._rest(self._front, frames)
        return self._clients.receive(peer, frames, tenant, self._clock())

    def _receive_worker(self, peer: bytes) -> list[Send]:
        frames: list[bytes] = []
        self._rest(self._back, frames)
        return self._workers.receive(peer, frames, self._clock())

    @staticmethod
    def _rest(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
        while socket.getsockopt(zmq.RCVMORE):
            frame = socket.recv(zmq.NOBLOCK)
            if len(frames) <= MAX_FRAMES:  # one more than is allowed: it stays visible
                frames.append(frame)

    def _execute(self, sends: list[Send]) -> None:
        for side, peer, frames in sends:
            if self._senders[side].send(peer, frames) is Sent.GONE:
                self._unreachable(side, peer)

    def _retry(self) -> None:
        for side, sender in self._senders.items():
            if sender.has_backlog:
                for peer in sender.retry_backlogs():
                    self._unreachable(side, peer)

    def _unreachable(self, side: str, peer: bytes) -> None:
        if side == "front":
            self._clients.unreachable(peer)
        else:
            self._workers.unreachable(peer)


def _bind(socket: "zmq.Socket[bytes]", address: str) -> str:
    allow_ipv6(socket, address)
    socket.bind(address)
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\x00").decode()


def _user_id(frame: zmq.Frame) -> str:
    """Return the name that the ZAP handler gave the connection of this frame, or ""."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
