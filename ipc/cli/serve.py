"""``octavo serve``: a broker and one worker in one command."""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .broker_options import add_broker_arguments, bind_broker, broker_options
from .command_error import CommandError
from .engine_options import engine_options
from .worker import add_worker_arguments

if TYPE_CHECKING:
    from ..broker_service import BrokerOptions

NAME = "serve"
HELP = "serve a model: a broker and one worker"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_broker_arguments(parser)
    add_worker_arguments(parser)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, then drain the broker, then end the worker."""
    from ..service_log import log_to_stderr
    from ..worker_process import WorkerProcess

    engine_options(arguments)  # a bad flag is refused here, not in the worker
    log_to_stderr(arguments.log_level)
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))  # only its owner can enter
    try:
        own = f"ipc://{folder}/workers"
        options = broker_options(arguments, backend=[own, *(arguments.workers or [])])
        options, key_arguments = with_worker_key(options, folder)
        service = bind_broker(options)
        worker = WorkerProcess(
            [*worker_arguments(arguments), "--connect", own, *key_arguments],
            gave_up=service.broker.request_drain,
        )
        worker.start()
        service.announce()
        try:
            service.run()
        finally:
            worker.stop(patience=10.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if worker.failed:
        raise CommandError("the worker could not load its engine; its own message is above")
    return 0


def with_worker_key(options: "BrokerOptions", folder: Path) -> "tuple[BrokerOptions, list[str]]":
    """With keys, the broker's own worker needs one too: make it, and let it in."""
    from ..keys import load_public, new_key, write_public

    if options.keys is None:
        return options, []
    public, secret = new_key("own-worker", folder)
    server = write_public(options.keys.own.public, folder / "broker.key")
    workers = replace(options.keys.workers, extra={load_public(public): "own-worker"})
    keys = replace(options.keys, workers=workers)
    return replace(options, keys=keys), ["--key", str(secret), "--server-key", str(server)]


def worker_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of ``octavo worker`` for what was given to ``octavo serve``."""
    parser = argparse.ArgumentParser(add_help=False)
    add_worker_arguments(parser)
    words = ["--leave-with-parent"]
    for name in ("heartbeat", "log_level", "drain_limit"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    for action in parser._actions:  # what a parser declares, argparse tells in no other way
        value = getattr(arguments, action.dest, None)
        if value is None:
            continue
        if action.nargs != 0:
            words += [action.option_strings[0], str(value)]
        elif value == action.const:
            words.append(action.option_strings[0])
    return words
