"""``octavo batch``: a file of requests in, a file of answers out."""

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from .command_error import CommandError, UsageError
from .connection_options import add_connection_arguments, connection_options
from .engine_options import add_engine_arguments, given_engine_flags, load_engine
from .sampling_options import add_sampling_arguments, given_parameters

if TYPE_CHECKING:
    from ..batch_backend import Backend
    from ..batch_line import LineParser
    from ..batch_summary import BatchSummary
    from ..batch_task import BatchTask

NAME = "batch"
HELP = "decode a file of requests into a file of answers; continues where a killed run stopped"

SERVICE_ROWS = 32  # of a service that does not say how many it has
BUSY_SECONDS = 3600.0  # how long a job goes on asking a service that is busy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "input",
        metavar="INPUT",
        help='one request a line: {"custom_id", "prompt" or "messages", sampling parameters}, or'
        " OpenAI's batch format; - reads stdin",
    )
    parser.add_argument(
        "--output",
        "-o",
        required=True,
        help="where the answers are appended as they end; - writes stdout",
    )
    parser.add_argument(
        "--retry-errors",
        action="store_true",
        help="drop the error records that OUTPUT has and run their lines again",
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep what OUTPUT has, even if it is not of this input, and add to it",
    )
    parser.add_argument(
        "--any-model",
        action="store_true",
        help="answer lines that name another model, too",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the job: each line without a seed gets its own from this and its custom_id",
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="show a progress bar on stderr (by default if that is a terminal)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the summary as one line of JSON: on stdout, or stderr if answers go to stdout",
    )
    add_connection_arguments(parser)
    parser.set_defaults(connect=None)  # an engine of its own
    add_engine_arguments(parser)
    add_sampling_arguments(parser, batch=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the job with an engine of its own, or with a running service."""
    if arguments.connect is not None:
        return run_with_service(arguments)

    def make_backend() -> "Backend":
        from ..engine_backend import EngineBackend

        return EngineBackend(load_engine(arguments))

    return run_batch(arguments, make_backend)


def run_with_service(arguments: argparse.Namespace) -> int:
    """Run the job with the service at ``--connect``."""
    from ..addresses import AddressError
    from ..client_backend import ClientBackend
    from ..client_connection import ClientConnection
    from ..client_core import ClientConfig
    from ..keys import KeyFileError

    flags = given_engine_flags(arguments)
    if flags:
        raise UsageError(f"{flags[0]} is for an engine of one's own; leave it out with --connect")
    options = connection_options(arguments)
    config = ClientConfig(retry_for=BUSY_SECONDS)
    try:
        connection = ClientConnection(arguments.connect, config=config, **options)
    except (AddressError, KeyFileError, ValueError) as error:
        raise UsageError(str(error)) from None
    max_rows = getattr(arguments, "max_rows", SERVICE_ROWS)
    try:
        return run_batch(
            arguments,
            lambda: ClientBackend(connection, model=arguments.model, max_rows=max_rows),
        )
    finally:
        connection.close()


def run_batch(arguments: argparse.Namespace, make_backend: Callable[[], "Backend"]) -> int:
    """Run the job that ``arguments`` describe; the backend is made only if there is work."""
    from ..batch_file import BatchFileError
    from ..batch_task import BatchTask

    parser_of = parser_maker(arguments)
    try:
        with BatchTask(
            arguments.input,
            arguments.output,
            model=arguments.model,
            make_parser=parser_of,
            append=arguments.append,
            retry_errors=arguments.retry_errors,
        ) as task:
            if task.repaired_bytes:
                message = f"cut off a torn last line ({task.repaired_bytes} bytes)"
                print(f"octavo batch: {message}; its request runs again", file=sys.stderr)
            summary = task.summary_if_done() or decode(arguments, task, parser_of(), make_backend())
    except BatchFileError as error:
        raise UsageError(str(error)) from None
    return report(arguments, task, summary)


def parser_maker(arguments: argparse.Namespace) -> "Callable[[], LineParser]":
    """Return what makes a parser of the job's lines; UsageError if a flag is out of range."""
    from engine.errors import RequestError
    from engine.sampling_params import SamplingParams

    from ..batch_line import LineParser

    defaults = given_parameters(arguments)
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise UsageError(str(error)) from None
    return lambda: LineParser(
        model=arguments.model,
        defaults=defaults,
        seed=arguments.seed,
        any_model=arguments.any_model,
    )


def decode(
    arguments: argparse.Namespace, task: "BatchTask", parser: "LineParser", backend: "Backend"
) -> "BatchSummary":
    """Run what has no record yet."""
    from ..batch_backend import BackendLostError
    from ..batch_job import BatchJob
    from .progress import BatchProgress
    from .stop_signals import stop_signals

    progress = BatchProgress(task.total, shown=getattr(arguments, "progress", None))
    job = BatchJob(
        lines=task.lines(),
        parser=parser,
        backend=backend,
        output=task.output,
        model=arguments.model,
        ledger=task.ledger,
        on_progress=progress.show,
    )
    left = resumption(task, arguments.output)
    try:
        with progress, stop_signals(job.stop):
            return job.run()
    except BackendLostError as error:
        raise CommandError(f"{error}; {left}") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"cannot write {arguments.output}: {error.strerror}; {left}") from error
    except Exception as error:  # a fault of ours: say where, and that nothing is lost
        traceback.print_exc()
        raise CommandError(f"decoding failed with {error!r}; {left}") from error


def resumption(task: "BatchTask", name: str) -> str:
    """Return what a job that failed leaves behind."""
    if not task.resumable:
        return "the records that were written are whole"
    return f"the records in {name} are whole, and the same command run again goes on behind them"


def report(arguments: argparse.Namespace, task: "BatchTask", summary: "BatchSummary") -> int:
    """Print the summary; return the exit status."""
    from .summary_table import print_summary

    print_summary(summary, as_json=arguments.json, to_stdout=arguments.output != "-")
    of_total = f"{summary.requests}" + (f" of {task.total}" if task.total is not None else "")
    if summary.signal is not None:
        again = "the same command run again goes on from here"
        hint = again if task.resumable else "what was running has no answer"
        print(f"octavo batch: stopped after {of_total} requests; {hint}", file=sys.stderr)
        return 128 + summary.signal
    if summary.all_failed:
        where = "" if arguments.output == "-" else f" in {arguments.output}"
        kept = f" ({summary.kept_errors} in an earlier run; --retry-errors runs them again)"
        print(
            f"octavo batch: {summary.all_failed} of {summary.requests} requests failed"
            f"{kept if summary.kept_errors else ''}; their records{where} have an error."
            f" The first: {summary.first_error}",
            file=sys.stderr,
        )
        return 1
    return 0
