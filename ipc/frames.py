"""One message's frames into a socket and out of it, with as little around them as possible.

A token's way is a chain of threads that slept, on cores whose caches others have used since: every
function on it is fetched from memory anew, and that is most of what a message costs.
"""

import zmq
from zmq.backend import Socket as Backend

_NOW = int(zmq.NOBLOCK)  # plain numbers: combining flags of an enum is Python code
_NOW_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_send = Backend.send  # what ``zmq.Socket.send`` calls after looking for options not used here


def send_frames(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
    """Send one message without waiting. Raises zmq.Again if the socket takes none now.

    The first frame decides: a DEALER or ROUTER takes a message whole or not at all.
    """
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        _send(socket, frame, _NOW if index == last else _NOW_AND_MORE)


def send_to(socket: "zmq.Socket[bytes]", peer: bytes, frames: list[bytes]) -> None:
    """Send one message to a peer of a ROUTER without waiting. Raises zmq.ZMQError."""
    last = len(frames) - 1
    _send(socket, peer, _NOW_AND_MORE)
    for index, frame in enumerate(frames):
        _send(socket, frame, _NOW if index == last else _NOW_AND_MORE)


def receive_frames(socket: "zmq.Socket[bytes]", max_frames: int) -> list[bytes] | None:
    """Return one message's frames, or None if there is none now.

    Frames beyond ``max_frames`` + 1 are thrown away: that the message is too long stays visible.
    """
    try:
        first = socket.recv(_NOW, copy=False)  # a Frame knows whether more follow
    except zmq.Again:
        return None
    return _with_the_rest(socket, first, max_frames)


def receive_from(
    socket: "zmq.Socket[bytes]", max_frames: int
) -> tuple[bytes, zmq.Frame, list[bytes]] | None:
    """Return what a ROUTER has received: the peer, the first frame as it is, and all frames.

    As ``receive_frames``; the first frame tells what is known of the connection.
    """
    try:
        peer = socket.recv(_NOW)
    except zmq.Again:
        return None
    first = socket.recv(_NOW, copy=False)
    return peer, first, _with_the_rest(socket, first, max_frames)


def _with_the_rest(socket: "zmq.Socket[bytes]", frame: zmq.Frame, max_frames: int) -> list[bytes]:
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(_NOW, copy=False)
        if len(frames) <= max_frames:
            frames.append(frame.bytes)
    return frames
