"""``octavo worker``: an engine that serves a broker."""

import argparse
import os
from typing import TYPE_CHECKING

from ..limits import DEFAULT_WORKER_ADDRESS
from .broker_options import host_and_port, positive
from .command_error import CommandError, UsageError
from .connection_options import add_connection_arguments, connection_options
from .engine_options import add_engine_arguments, engine_options

if TYPE_CHECKING:
    from ..keys import KeyPair

NAME = "worker"
HELP = "load a model and serve a broker with it"


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that ``octavo serve`` has too."""
    seconds = positive(float)
    add_engine_arguments(parser)
    group = parser.add_argument_group("worker")
    group.add_argument("--serve-as", metavar="NAME", help="the model's name for clients")
    group.add_argument(
        "--capacity", type=int, default=0, help="requests to hold at once; 0: twice the rows"
    )
    group.add_argument(
        "--hang-limit",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="an engine that makes no step for this long is given up",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_connection_arguments(parser, default=DEFAULT_WORKER_ADDRESS)
    add_worker_arguments(parser)
    parser.add_argument(
        "--drain-limit",
        type=positive(float),
        default=30.0,
        metavar="SECONDS",
        help="what runs at SIGTERM may take this long to end",
    )
    parser.add_argument(
        "--heartbeat", type=positive(float), default=1.0, metavar="SECONDS", help="until welcomed"
    )
    parser.add_argument(
        "--http", type=host_and_port, metavar="[HOST:]PORT", help="serve /healthz there"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))
    parser.add_argument(
        "--leave-with-parent", action="store_true", help="end when the starting process does"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, then drain. Status 3: the engine could not be loaded."""
    from ..addresses import AddressError
    from ..broker_service import on_stop_signals
    from ..engine_loader import engine_loader
    from ..service_log import log, log_to_stderr
    from ..status_page import StatusPage
    from ..worker import Worker
    from ..worker_process import CANNOT_LOAD

    log_to_stderr(arguments.log_level)
    load = engine_loader(
        arguments.model,
        engine_options(arguments),
        served_as=arguments.serve_as,
        capacity=arguments.capacity,
    )
    parent = os.getppid()
    try:
        worker = Worker(
            arguments.connect,
            load,
            keys=_keys(arguments),
            drain_limit=arguments.drain_limit,
            hang_limit=arguments.hang_limit,
            heartbeat=arguments.heartbeat,
            orphaned=lambda: arguments.leave_with_parent and os.getppid() != parent,
        )
    except AddressError as error:
        raise UsageError(str(error)) from None
    page = None
    if arguments.http is not None:
        host, port = arguments.http
        page = StatusPage(host, port, lambda: (worker.healthy(), {}))
    on_stop_signals(worker.request_drain)
    failure = worker.run()
    if page is not None:
        page.close()
    log("stopped", failure=failure)
    if failure is None:
        return 0
    if not worker.engine.loaded:
        cannot_load = CommandError(failure)
        cannot_load.exit_status = CANNOT_LOAD
        raise cannot_load
    # The engine's thread may hang; nothing may wait for it.
    os._exit(1)


def _keys(arguments: argparse.Namespace) -> "tuple[KeyPair, bytes] | None":
    from ..keys import KeyFileError, load_pair, load_public

    files = connection_options(arguments)
    if files["key"] is None:
        return None
    try:
        return load_pair(files["key"]), load_public(files["server_key"])
    except KeyFileError as error:
        raise UsageError(str(error)) from None
