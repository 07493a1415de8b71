"""A worker as a child process: started, started again when it fails, ended with its parent."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from .service_log import log

CANNOT_LOAD = 3
"""Exit status of a worker whose engine could not be loaded: trying again would not help."""

_LONGEST_PAUSE = 30.0


class WorkerProcess:
    """Keeps one worker running until stopped. ``gave_up`` is called if that is impossible."""

    def __init__(self, arguments: Sequence[str], gave_up: Callable[[], None]) -> None:
        self._command = [sys.executable, "-m", "ipc.cli.main", "worker", *arguments]
        self._gave_up = gave_up
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, name="worker process")
        self.failed = False

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """End the worker; kill it after ``patience`` seconds."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._thread.join(timeout=patience)
        if self._thread.is_alive():
            self._signal(signal.SIGKILL)
            self._thread.join()

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(number)

    def _keep_running(self) -> None:
        pause = 0.5
        while not self._stopping.is_set():
            began = time.monotonic()
            # its own session: Ctrl-C reaches the parent alone, which then drains it in order
            self._process = subprocess.Popen(self._command, start_new_session=True)
            if self._stopping.is_set():
                self._signal(signal.SIGTERM)
            status = self._process.wait()
            if self._stopping.is_set():
                return
            log("worker_exited", status=status)
            if status == CANNOT_LOAD:
                self.failed = True
                self._gave_up()
                return
            pause = 0.5 if time.monotonic() - began > 60 else min(2 * pause, _LONGEST_PAUSE)
            self._stopping.wait(pause)
