"""A TCP proxy that delays, throttles and cuts connections."""

import random
import socket
import threading
import time
from contextlib import suppress


class TroubleProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes on to ``target``."""

    def __init__(self, target: str, seed: int = 0) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._chance = random.Random(seed)
        self.delay = 0.0  # seconds a piece waits, at most
        self.bytes_per_second = 0.0  # 0: as fast as it goes
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, in the middle of whatever it carries."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                if self._closed:
                    return
                continue
            self.connections += 1
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(4096):
                if self.delay:
                    time.sleep(self._chance.uniform(0, self.delay))
                if self.bytes_per_second:
                    time.sleep(len(piece) / self.bytes_per_second)
                sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.close()
