"""Lines read from a file or a pipe, lazily, and without ever waiting longer than asked."""

import os
import select
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = (
    1 << 26
)  # a prompt of 64 MiB fits no model; a file without line ends fits no memory


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line that is not blank: its number from 1, and its bytes (None: it was too long)."""

    number: int
    content: bytes | None


class InputLines:
    """Lines of an open file descriptor. Reads at most one chunk ahead of what is taken."""

    def __init__(self, descriptor: int, *, max_line_bytes: int = MAX_LINE_BYTES):
        self.ended = False  # everything has been taken
        self._descriptor = descriptor
        self._max_line_bytes = max_line_bytes
        self._number = 0
        self._lines: deque[InputLine] = deque()
        self._pieces: list[bytes] = []  # of the line whose end has not been read
        self._piece_bytes = 0
        self._exhausted = False  # everything has been read

    def take(self, timeout: float | None = 0.0) -> InputLine | None:
        """Return the next line, waiting up to ``timeout`` seconds for it (None: without end).

        None comes back when there was none in time, and at the end, where ``ended`` is true.
        """
        while not self._lines and not self._exhausted:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                return None
            self._read_chunk()
        if self._lines:
            return self._lines.popleft()
        self.ended = True
        return None

    def __iter__(self) -> Iterator[InputLine]:
        while (line := self.take(timeout=None)) is not None:
            yield line

    def _read_chunk(self) -> None:
        chunk = os.read(self._descriptor, CHUNK_BYTES)
        if not chunk:
            self._exhausted = True
            if self._piece_bytes:
                self._end_line(b"")
            return
        *whole, rest = chunk.split(b"\n")
        for end in whole:
            self._end_line(end)
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        self._piece_bytes += len(piece)
        if self._piece_bytes > self._max_line_bytes:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _end_line(self, end: bytes) -> None:
        self._keep(end)
        self._number += 1
        too_long = self._piece_bytes > self._max_line_bytes
        content = b"".join(self._pieces)
        self._pieces.clear()
        self._piece_bytes = 0
        if self._number == 1:
            content = content.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors put first
        content = content.strip()
        if too_long:
            self._lines.append(InputLine(self._number, None))
        elif content:
            self._lines.append(InputLine(self._number, content))
