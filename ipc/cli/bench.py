"""``octavo bench``: named workloads over the bundled prompts, a line of figures for each run."""

import argparse
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .command_error import CommandError, UsageError
from .engine_options import add_engine_arguments, engine_options, load_engine

if TYPE_CHECKING:
    from ..bench.arrivals import Arrivals
    from ..bench.suite import Planned

NAME = "bench"
HELP = "measure named workloads over the bundled prompts"
RUNS_FILE = "runs.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="see --list; with none of these and no arrivals: all, then widths and loads",
    )
    parser.add_argument("--list", action="store_true", help="say what workloads there are")
    coming = parser.add_mutually_exclusive_group()
    coming.add_argument(
        "--concurrency",
        type=counts,
        default=None,
        metavar="N[,N...]",
        help="so many users at a time, the next when one is done; a run for each N",
    )
    coming.add_argument(
        "--rate",
        type=rates,
        default=None,
        metavar="R[,R...]",
        help="users come at random, R a second; a run for each R; without either: all at once",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random arrivals")
    parser.add_argument("--sessions", type=count, metavar="N", help="how many users there are")
    parser.add_argument("--tokens", type=count, metavar="N", help="most tokens of an answer")
    parser.add_argument("--repeat", type=count, default=1, metavar="N", help="make every run again")
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="append the lines here instead of printing them"
    )
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        help=f"append the lines to FOLDER/{RUNS_FILE}, and plot all that are there",
    )
    add_engine_arguments(parser)


def count(value: str) -> int:
    """Return a whole number from 1."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} must be a whole number from 1")
    return int(value)


def counts(value: str) -> list[int]:
    """Return whole numbers from 1, separated by commas."""
    return [count(part) for part in value.split(",")]


def rates(value: str) -> list[float]:
    """Return numbers above 0, separated by commas."""
    try:
        found = [float(part) for part in value.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise argparse.ArgumentTypeError(f"{value!r} must be numbers above 0, such as 0.5,1,2")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Run, print or write the records, and plot them if asked to."""
    from ..bench.workloads import WORKLOADS

    if arguments.list:
        width = max(map(len, WORKLOADS))
        for workload in WORKLOADS.values():
            print(f"{workload.name:<{width}}  {workload.about}")
        return 0
    for name in arguments.workloads:
        if name not in WORKLOADS:
            raise UsageError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    folder = None if arguments.report is None else report_folder(arguments.report)
    path = arguments.output and Path(arguments.output)
    if path is None and folder is not None:
        path = folder / RUNS_FILE
    with nullcontext(sys.stdout) if path is None else open_output(path) as file:
        failed = run_all(arguments, file)
    if folder is not None and path is not None:
        make_report(folder, path)
    return 1 if failed else 0


def report_folder(name: str) -> Path:
    """Make the folder of a report. Find out whether plots can be made before anything is run."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        reason = "plots need matplotlib: pip install matplotlib"
        raise CommandError(f"{reason}, or leave --report out and keep the lines") from None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make the folder {name}: {error.strerror}") from None
    return folder


def open_output(path: Path) -> TextIO:
    """Open a file to append to; CommandError with the reason if that fails."""
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


def run_all(arguments: argparse.Namespace, file: TextIO) -> bool:
    """Run what was asked for, a line to ``file`` each; return whether any answer failed."""
    from engine.errors import RequestError

    from ..bench.bench import Bench

    engine = load_engine(arguments)
    options = engine_options(arguments)
    bench = Bench(engine, options=options, command=["octavo", *sys.argv[1:]])
    bench.warm_up()
    runs = planned(arguments, engine.describe()["max_rows"])
    failed = False
    record: dict[str, Any] | None = None
    while True:
        try:
            one = next(runs) if record is None else runs.send(record)
        except StopIteration:
            return failed
        tokens = {"num_sessions": one.num_sessions, "num_tokens": arguments.tokens}
        try:
            record = bench.run(one.workload, one.arrivals, **tokens)
        except RequestError as error:
            raise CommandError(f"workload {one.workload.name}: {error}") from None
        print(json.dumps(record), file=file, flush=True)
        print(told(record, str(one.arrivals)), file=sys.stderr)
        failed = failed or "error" in record["finish_reasons"]


def planned(
    arguments: argparse.Namespace, max_rows: int
) -> Generator["Planned", dict[str, Any], None]:
    """Yield the runs to make; takes each one's record back."""
    from ..bench import suite
    from ..bench.workloads import WORKLOADS

    processes = list(arrival_processes(arguments))
    if arguments.workloads or processes:
        names = arguments.workloads or list(WORKLOADS)
        yield from suite.chosen(names, processes, arguments.sessions, arguments.repeat)
        return
    for _ in range(arguments.repeat):
        yield from suite.everything(max_rows, arguments.sessions, arguments.seed)


def arrival_processes(arguments: argparse.Namespace) -> Iterator["Arrivals"]:
    """Yield the arrival processes that the flags name; none if they name none."""
    from ..bench.arrivals import Arrivals

    for concurrency in arguments.concurrency or ():
        yield Arrivals(concurrency=concurrency)
    for rate in arguments.rate or ():
        yield Arrivals(rate=rate, seed=arguments.seed)


def told(record: dict[str, Any], arrivals: str) -> str:
    """Return a line about a run for whoever watches."""
    first, each = record["time_to_first_token_s"], record["time_per_token_s"]
    parts = [f"{record['workload']}, {arrivals}: {record['output_tokens']} tokens"]
    parts.append(f"{record['output_tokens_per_second'] or 0:.1f} a second")
    if first is not None:
        parts.append(f"first after {first['median']:.3f} s")
    if each is not None:
        parts.append(f"then {1e3 * each['median']:.1f} ms each")
    parts.append(f"{record['cached_tokens']} of {record['prompt_tokens']} prompt tokens cached")
    return ", ".join(parts)


def make_report(folder: Path, runs: Path) -> None:
    """Plot the lines of ``runs`` into ``folder``."""
    from ..bench.report import read_records, write_report

    for path in write_report(read_records(runs), folder):
        print(path, file=sys.stderr)
