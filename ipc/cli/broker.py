"""``octavo broker``: clients on one side, workers on the other."""

import argparse

from ..limits import DEFAULT_WORKER_ADDRESS
from .broker_options import add_broker_arguments, bind_broker, broker_options

NAME = "broker"
HELP = "pass requests from clients to workers that connect to it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_broker_arguments(parser)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, then drain."""
    from ..service_log import log_to_stderr

    log_to_stderr(arguments.log_level)
    backend = arguments.workers or [DEFAULT_WORKER_ADDRESS]
    service = bind_broker(broker_options(arguments, backend=backend))
    service.announce()
    service.run()
    return 0
