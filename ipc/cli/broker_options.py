"""The flags of every command that runs a broker."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..limits import DEFAULT_ADDRESS
from .command_error import CommandError, UsageError

if TYPE_CHECKING:
    from ..broker_service import BrokerOptions, BrokerService
    from ..keys import BrokerKeys


def host_and_port(value: str) -> tuple[str, int]:
    """Read ``PORT`` or ``HOST:PORT``; 0 takes any free port."""
    host, _, port = value.rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} must be PORT or HOST:PORT") from None
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"port {number} must be from 0 to 65535")
    return (host or "127.0.0.1").strip("[]"), number


def positive(convert: Callable[[str], float]) -> Callable[[str], float]:
    """Return a reader of numbers above 0."""

    def read(value: str) -> float:
        try:
            number = convert(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{value!r} is no number") from None
        if not number > 0 or not math.isfinite(number):
            raise argparse.ArgumentTypeError(f"{value} must be above 0")
        return number

    return read


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    seconds, count = positive(float), positive(int)
    group = parser.add_argument_group("broker")
    group.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help=f"where clients connect; repeatable (default: {DEFAULT_ADDRESS})",
    )
    group.add_argument(
        "--workers", action="append", metavar="ADDRESS", help="where workers connect; repeatable"
    )
    group.add_argument(
        "--http",
        type=host_and_port,
        metavar="[HOST:]PORT",
        help="serve /healthz and /metrics there",
    )
    group.add_argument("--heartbeat", type=seconds, default=1.0, metavar="SECONDS", help="interval")
    group.add_argument(
        "--stall-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="a request whose reader does not read is cancelled after this",
    )
    group.add_argument(
        "--drain-limit",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="what runs at SIGTERM may take this long to end",
    )
    limits = parser.add_argument_group("limits", "of all requests inside, and of one tenant's")
    for scope in ("max", "tenant"):
        for resource, default in (
            ("requests", 4096),
            ("tokens", 16_000_000),
            ("bytes", 512 << 20),
        ):
            of_whom = "of a tenant" if scope == "tenant" else "of all"
            limits.add_argument(
                f"--{scope}-{resource}",
                type=count,
                default=default,
                metavar="N",
                help=f"most {resource} {of_whom}",
            )
    safety = parser.add_argument_group("keys", "needed to listen beyond this machine")
    safety.add_argument("--key", type=Path, metavar="FILE", help="the broker's secret key")
    safety.add_argument(
        "--allow-clients", type=Path, metavar="DIR", help="public keys of clients that may connect"
    )
    safety.add_argument(
        "--allow-workers", type=Path, metavar="DIR", help="public keys of workers that may connect"
    )


def broker_options(arguments: argparse.Namespace, *, backend: list[str]) -> "BrokerOptions":
    """Return the options that the flags describe; ``backend`` is where workers connect."""
    from ..admission import AdmissionLimits, Amount
    from ..broker_records import BrokerConfig
    from ..broker_service import BrokerOptions

    total, tenant = (
        Amount(
            requests=getattr(arguments, f"{scope}_requests"),
            tokens=getattr(arguments, f"{scope}_tokens"),
            bytes=getattr(arguments, f"{scope}_bytes"),
        )
        for scope in ("max", "tenant")
    )
    config = BrokerConfig(
        heartbeat=arguments.heartbeat,
        limits=AdmissionLimits(total, tenant),
        stall_limit=arguments.stall_limit,
        drain_limit=arguments.drain_limit,
    )
    return BrokerOptions(
        frontend=arguments.listen or [DEFAULT_ADDRESS],
        backend=backend,
        config=config,
        keys=_keys(arguments),
        http=arguments.http,
    )


def _keys(arguments: argparse.Namespace) -> "BrokerKeys | None":
    from ..keys import AllowList, BrokerKeys, KeyFileError, load_pair

    if arguments.key is None:
        if arguments.allow_clients is not None or arguments.allow_workers is not None:
            raise UsageError("--allow-clients and --allow-workers need --key")
        return None
    if arguments.allow_clients is None:
        raise UsageError("--key needs --allow-clients: a directory of the public keys of clients")
    workers = arguments.allow_workers or arguments.allow_clients
    for directory in (arguments.allow_clients, workers):
        if not directory.is_dir():
            raise UsageError(f"{directory} is no directory")
    try:
        own = load_pair(arguments.key)
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    return BrokerKeys(own, AllowList(arguments.allow_clients), AllowList(workers))


def bind_broker(options: "BrokerOptions") -> "BrokerService":
    """Bind the broker; CommandError or UsageError with the reason if it cannot."""
    import zmq

    from ..addresses import AddressError
    from ..broker_service import BrokerService

    try:
        return BrokerService(options)
    except AddressError as error:
        raise UsageError(str(error)) from None
    except (zmq.ZMQError, OSError) as error:
        where = ", ".join([*options.frontend, *options.backend])
        raise CommandError(f"cannot listen on {where}: {error}") from None
