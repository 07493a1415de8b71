"""A small HTTP page: ``/healthz``, which is true or absent, and ``/metrics``."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Health = Callable[[], tuple[bool, Mapping[str, object]]]


class StatusPage:
    """Serves on a thread of its own until closed."""

    def __init__(
        self, host: str, port: int, health: Health, metrics: Callable[[], bytes] | None = None
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a caller that says nothing does not hold a thread for ever

            def do_GET(self) -> None:
                if self.path == "/healthz":
                    healthy, details = health()
                    status = 200 if healthy else 503
                    body = json.dumps({"healthy": healthy, **details}).encode()
                    self._answer(status, "application/json", body)
                elif self.path == "/metrics" and metrics is not None:
                    self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
                else:
                    self._answer(404, "text/plain", b"there are /healthz and /metrics\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: scrapes are not news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="status page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
