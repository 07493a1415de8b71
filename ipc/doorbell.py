"""What one thread rings to wake another that waits for descriptors."""

import os
import sys
from contextlib import suppress


class Doorbell:
    """Rung from any thread; heard by whoever polls ``fd`` for reading, until it is cleared.

    Its descriptors live as long as it does, so that nobody can ring one that is another's by now.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":  # where one call wakes, without a socket's buffers
            self.fd = self._writer = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._writer = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._writer, False)

    def ring(self) -> None:
        """Wake whoever listens. Several rings before it hears are one."""
        try:  # not suppress(), which is Python code on every token's way
            os.write(self._writer, _ONE)
        except OSError:
            return  # it rings already, or both are garbage and this went first

    def clear(self) -> None:
        """Be quiet until the next ring. What it rang for is to be looked for afterwards."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def __del__(self) -> None:
        fds, self.fd, self._writer = {self.fd, self._writer} - {-1}, -1, -1
        for fd in fds:
            os.close(fd)


_ONE = (1).to_bytes(8, sys.byteorder)  # an eventfd adds it up, a pipe keeps it
