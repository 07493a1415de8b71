"""The flags of every command that connects to a broker."""

import argparse
from pathlib import Path
from typing import Any

from ..limits import DEFAULT_ADDRESS
from .command_error import UsageError


def add_connection_arguments(
    parser: argparse.ArgumentParser, *, default: str = DEFAULT_ADDRESS
) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("connection")
    group.add_argument("--connect", metavar="ADDRESS", default=default, help="the broker's address")
    group.add_argument(
        "--key", type=Path, metavar="FILE", help="one's own secret key (NAME.key_secret)"
    )
    group.add_argument(
        "--server-key", type=Path, metavar="FILE", help="the broker's public key (NAME.key)"
    )


def connection_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return Client's ``key`` and ``server_key``; UsageError if one is missing."""
    if (arguments.key is None) != (arguments.server_key is None):
        raise UsageError("--key and --server-key go together: give both, or neither")
    return {"key": arguments.key, "server_key": arguments.server_key}
