"""Addresses of sockets: which ones need no keys, and how a socket is set up for them."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Any

import zmq

from .limits import MAX_FRAME_BYTES

HIGH_WATER_MARK = 1000  # messages, a peer and direction
_LONGEST_PATH = 107  # bytes


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


def local_target(address: str) -> tuple[socket.AddressFamily, Any]:
    """Return the family of a local address, and where to connect. Raises AddressError."""
    path = address.removeprefix("ipc://")
    if path != address:
        if len(path.encode()) > _LONGEST_PATH:
            raise AddressError(f"{address!r} is longer than a path to a socket may be")
        return socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        raise AddressError(f"{address!r} names no port to connect to")
    if host.startswith("["):
        return socket.AF_INET6, (host.strip("[]"), int(port))
    return socket.AF_INET, ("127.0.0.1" if host == "localhost" else host, int(port))


def require_local_or_curve(addresses: Iterable[str], *, curve: bool) -> None:
    """Raise AddressError for an address that others could reach without a key."""
    for address in addresses:
        if not is_local(address) and not curve:
            raise AddressError(
                f"{address!r} is open to other machines, and without keys to anyone on them: give "
                "a key and a directory of allowed keys (see `octavo keys new`), or bind "
                "tcp://127.0.0.1:PORT or ipc://PATH"
            )


def allow_ipv6(made: "zmq.Socket[bytes]", address: str) -> None:
    """Let a socket use an IPv6 address. It turns IPv4 ones into their IPv6 form, so only then."""
    made.ipv6 = address.startswith("tcp://[")


def configure(made: "zmq.Socket[bytes]") -> None:
    """Bound a socket's queues and messages, and let it notice dead connections.

    Never with ZMQ_HEARTBEAT_IVL: libzmq 4.3.5 aborts the process (``!_io_error``) if its timer
    fires after a peer left whose messages had reached the high-water mark.
    """
    made.sndhwm = made.rcvhwm = HIGH_WATER_MARK
    made.maxmsgsize = MAX_FRAME_BYTES
    made.linger = 0
    made.tcp_keepalive = 1
    made.tcp_keepalive_idle = 30
    made.reconnect_ivl = 50
    made.reconnect_ivl_max = 1000
