"""Addresses of sockets: which ones need no keys, and how a socket is set up for them."""

import ipaddress
import re
from collections.abc import Iterable

import zmq

from .limits import MAX_FRAME_BYTES

HIGH_WATER_MARK = 1000  # messages, a peer and direction


class AddressError(ValueError):
    """An address that cannot, or must not, be used."""


def is_local(address: str) -> bool:
    """Whether only this machine can reach ``address``. Raises AddressError for other transports."""
    if address.startswith("ipc://"):
        return True
    match = re.fullmatch(r"tcp://(.+):(\d+|\*|!)", address)
    if match is None:
        raise AddressError(
            f"{address!r} is no address: it must look like tcp://HOST:PORT or ipc://PATH"
        )
    host = match.group(1).strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, an interface or a wildcard: it may be anywhere


def require_local_or_curve(addresses: Iterable[str], *, curve: bool) -> None:
    """Raise AddressError for an address that others could reach without a key."""
    for address in addresses:
        if not is_local(address) and not curve:
            raise AddressError(
                f"{address!r} is open to other machines, and without keys to anyone on them: give "
                "a key and a directory of allowed keys (see `octavo keys new`), or bind "
                "tcp://127.0.0.1:PORT or ipc://PATH"
            )


def allow_ipv6(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Let a socket use an IPv6 address. It turns IPv4 ones into their IPv6 form, so only then."""
    socket.ipv6 = address.startswith("tcp://[")


def configure(socket: "zmq.Socket[bytes]") -> None:
    """Bound a socket's queues and messages, and let it notice dead connections.

    Never with ZMQ_HEARTBEAT_IVL: libzmq 4.3.5 aborts the process (``!_io_error``) if its timer
    fires after a peer left whose messages had reached the high-water mark.
    """
    socket.sndhwm = socket.rcvhwm = HIGH_WATER_MARK
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.linger = 0
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = 30
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
