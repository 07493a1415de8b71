"""ZeroMQ's own protocol, ZMTP 3.0 without security: bytes of a connection to messages and back.

https://rfc.zeromq.org/spec/23/. What is refused raises BrokenPeerError.
"""

from .limits import MAX_FRAME_BYTES, MAX_FRAMES

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_GREETED = len(GREETING)  # 64 bytes
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT = 255  # bytes that a frame with a size of one byte can have
_SHORTEST_HEAD = 2
_TWO_HEADS = 2 * _SHORTEST_HEAD


class BrokenPeerError(Exception):
    """The other side speaks something else; the connection is of no use."""


def framed(frames: list[bytes]) -> bytes:
    """Return the bytes of one message."""
    if len(frames) == 2:
        first, last = frames
        one, other = len(first), len(last)
        if one <= _SHORT and other <= _SHORT:  # the usual chunk
            return b"".join((_MORE_FOLLOW[one], first, _LAST[other], last))
    parts: list[bytes] = []
    for frame in frames:
        size = len(frame)
        parts += (_MORE_FOLLOW[size] if size <= _SHORT else _head(_MORE, size), frame)
    size = len(frame)
    parts[-2] = _LAST[size] if size <= _SHORT else _head(0, size)
    return b"".join(parts)


def _ready(kind: bytes) -> bytes:
    """Return the command that says which kind of socket this is."""
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return _head(_COMMAND, len(body)) + body


def _head(flags: int, size: int) -> bytes:
    if size <= _SHORT:
        return bytes((flags, size))
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


_MORE_FOLLOW = [_head(_MORE, size) for size in range(_SHORT + 1)]
_LAST = [_head(0, size) for size in range(_SHORT + 1)]


class Reader:
    """Takes what arrives on one connection, from its first byte on. ``kind`` is this end's."""

    def __init__(self, kind: bytes) -> None:
        self._kind = kind
        self.messages: list[list[bytes]] = []  # whole ones; whoever takes them leaves another list
        self.answers: list[bytes] = []  # what is to be sent because of what came
        self.is_greeted = False
        self.is_ready = False
        self._rest = bytearray()  # what came of a frame that is not whole yet
        self._needs = 0  # bytes, before looking at it again is of use
        self._frames: list[bytes] = []  # of a message whose end is still to come

    def alone(self, data: bytes) -> list[bytes] | None:
        """Return the message, if bytes are all of one of two short frames, as most chunks come.

        Then that is all; else ``feed`` takes them.
        """
        end = len(data)
        if end <= _TWO_HEADS or data[0] != _MORE or self._rest or self._frames:
            return None
        second = _SHORTEST_HEAD + data[1]
        begin = second + _SHORTEST_HEAD
        if begin > end or data[second] or begin + data[second + 1] != end or not self.is_ready:
            return None
        return [data[_SHORTEST_HEAD:second], data[begin:]]

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises BrokenPeerError.

        Frames beyond ``MAX_FRAMES`` + 1 of a message are thrown away: that it is too long stays
        visible. All in one function, because every message on its way passes it (see frames.py).
        """
        at = 0
        if self._rest or not self.is_greeted:
            data, at = self._begin(data)
        end = len(data)
        while end - at >= _SHORTEST_HEAD:
            flags = data[at]
            if not flags & _LONG:
                begin = at + 2
                after = begin + data[at + 1]
            elif (begin := at + 9) <= end:
                after = begin + _long_size(data[at + 1 : begin])
            else:
                break
            if after > end:
                self._keep(data[at:], after - at)
                return
            if flags > (_MORE | _LONG) or not self.is_ready:
                self._take_other(flags, data[begin:after])
            else:
                if len(self._frames) <= MAX_FRAMES:
                    self._frames.append(data[begin:after])
                if not flags & _MORE:
                    self.messages.append(self._frames)
                    self._frames = []
            at = after
        if at < end:
            self._keep(data[at:], 0)

    def _begin(self, data: bytes) -> tuple[bytes, int]:
        """Return all that is there to read, with what came before, and where to begin."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needs:
                return b"", 0
            data = bytes(self._rest)
            self._rest.clear()
        if self.is_greeted:
            return data, 0
        if len(data) < _GREETED:
            self._keep(data, _GREETED)
            return b"", 0
        _check_greeting(data)
        self.is_greeted = True
        self.answers.append(_ready(self._kind))
        return data, _GREETED

    def _keep(self, rest: bytes, needs: int) -> None:
        self._rest += rest
        self._needs = needs

    def _take_other(self, flags: int, body: bytes) -> None:
        """Take a frame that is none of a message."""
        if not flags & _COMMAND:
            raise BrokenPeerError(f"a frame with flags {flags}")
        self._command(body)

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


def _long_size(word: bytes) -> int:
    size = int.from_bytes(word, "big")
    if size > MAX_FRAME_BYTES:
        raise BrokenPeerError(f"a frame of {size} bytes")
    return size


def _check_greeting(data: bytes) -> None:
    if data[0] != 0xFF or not data[9] & 1 or data[10] < 3:
        raise BrokenPeerError("it does not speak ZMTP 3")
    mechanism = data[12:32].rstrip(b"\0")
    if mechanism != b"NULL":
        raise BrokenPeerError(f"it wants {mechanism!r}, and there are no keys here")
