"""ZeroMQ's own protocol, ZMTP 3.0 without security: bytes of a connection to messages and back.

https://rfc.zeromq.org/spec/23/. What is refused raises BrokenPeerError.
"""

from collections import deque

from .limits import MAX_FRAME_BYTES, MAX_FRAMES

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_GREETED = len(GREETING)  # 64 bytes
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT = 255  # bytes that a frame with a size of one byte can have


class BrokenPeerError(Exception):
    """The other side speaks something else; the connection is of no use."""


def framed(frames: list[bytes]) -> bytes:
    """Return the bytes of one message."""
    last = len(frames) - 1
    parts = []
    for index, frame in enumerate(frames):
        parts.append(_head(_MORE if index < last else 0, len(frame)))
        parts.append(frame)
    return b"".join(parts)


def _ready(kind: bytes) -> bytes:
    """Return the command that says which kind of socket this is."""
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return _head(_COMMAND, len(body)) + body


def _head(flags: int, size: int) -> bytes:
    if size <= _SHORT:
        return bytes((flags, size))
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


class Reader:
    """Takes what arrives on one connection, from its first byte on. ``kind`` is this end's."""

    def __init__(self, kind: bytes, messages: deque[list[bytes]] | None = None) -> None:
        self._kind = kind
        self.messages: deque[list[bytes]] = deque() if messages is None else messages  # whole ones
        self.answers: list[bytes] = []  # what is to be sent because of what came
        self.is_greeted = False
        self.is_ready = False
        self._rest = bytearray()  # what came of a frame that is not whole yet
        self._needs = 0  # bytes, before looking at it again is of use
        self._frames: list[bytes] = []  # of a message whose end is still to come

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises BrokenPeerError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needs:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        if not self.is_greeted:
            if len(data) < _GREETED:
                self._keep(data, _GREETED)
                return
            _check_greeting(data)
            self.is_greeted = True
            self.answers.append(_ready(self._kind))
            at = _GREETED
        while (frame := _frame_at(data, at)) is not None:
            flags, begin, end = frame
            if end > len(data):
                self._keep(data[at:], end - at)
                return
            self._take(flags, data[begin:end])
            at = end
        if at < len(data):
            self._keep(data[at:], 0)

    def _keep(self, rest: bytes, needs: int) -> None:
        self._rest += rest
        self._needs = needs

    def _take(self, flags: int, body: bytes) -> None:
        """Take a frame. Those beyond ``MAX_FRAMES`` + 1 of a message are thrown away.

        That it is too long stays visible.
        """
        if flags & _COMMAND:
            self._command(body)
            return
        if not self.is_ready or flags > (_MORE | _LONG):
            raise BrokenPeerError(f"a frame with flags {flags}")
        if len(self._frames) <= MAX_FRAMES:
            self._frames.append(body)
        if not flags & _MORE:
            self.messages.append(self._frames)
            self._frames = []

    def take_answers(self) -> list[bytes]:
        """Return what is to be sent because of what came."""
        answers, self.answers = self.answers, []
        return answers

    def _command(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"READY":
            self.is_ready = True
        elif name == b"PING":
            pong = b"\x04PONG" + body[7:]  # without the time to live
            self.answers.append(_head(_COMMAND, len(pong)) + pong)
        elif name == b"ERROR":
            raise BrokenPeerError(f"it refuses this connection: {body[7:]!r:.100}")


def _frame_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Return flags, beginning and end of the frame at ``at``; None if that is not known yet."""
    end = len(data)
    if end - at < 2:
        return None
    flags, size, begin = data[at], data[at + 1], at + 2
    if flags & _LONG:
        begin = at + 9
        if begin > end:
            return None
        size = int.from_bytes(data[at + 1 : begin], "big")
        if size > MAX_FRAME_BYTES:
            raise BrokenPeerError(f"a frame of {size} bytes")
    return flags, begin, begin + size


def _check_greeting(data: bytes) -> None:
    if data[0] != 0xFF or not data[9] & 1 or data[10] < 3:
        raise BrokenPeerError("it does not speak ZMTP 3")
    mechanism = data[12:32].rstrip(b"\0")
    if mechanism != b"NULL":
        raise BrokenPeerError(f"it wants {mechanism!r}, and there are no keys here")
