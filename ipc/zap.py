"""The answers to ZeroMQ's question whether a key may connect (RFC 27, ZAP).

It runs in the thread that owns the broker's sockets; the user id it gives a connection is the
name of its key, which every message of the connection then carries as metadata.
"""

from collections.abc import Mapping

import zmq
from zmq.utils import z85

from .keys import AllowList, KeyFileError

CLIENTS_DOMAIN = b"octavo.clients"
WORKERS_DOMAIN = b"octavo.workers"


class ZapHandler:
    """Answers from allow-lists, one a domain. Whatever is not on a list is refused."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", lists: Mapping[bytes, AllowList]):
        self._lists = dict(lists)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self.num_refused = 0

    def answer_pending(self) -> None:
        """Answer the questions that are there."""
        while True:
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(question))

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request_id = [*question, b"", b""][:2]
        name = self._name(question)
        if name is None:
            self.num_refused += 1
            return [version, request_id, b"400", b"this key may not connect", b"", b""]
        return [version, request_id, b"200", b"OK", name.encode(), b""]

    def _name(self, question: list[bytes]) -> str | None:
        if len(question) != 7 or question[0] != b"1.0" or question[5] != b"CURVE":
            return None
        allowed = self._lists.get(question[2])
        if allowed is None or len(question[6]) != 32:
            return None
        try:
            return allowed.name_of(z85.encode(question[6]))
        except (KeyFileError, ValueError):
            return None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
