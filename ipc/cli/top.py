"""``octavo top``: a live page of a running service."""

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .broker_options import positive
from .command_error import CommandError, UsageError
from .connection_options import add_connection_arguments, connection_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..messages import Stats

NAME = "top"
HELP = "watch a running service: workers, rows, blocks, acceptance, rates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_connection_arguments(parser)
    parser.add_argument(
        "--interval", type=positive(float), default=1.0, metavar="SECONDS", help="between two looks"
    )
    parser.add_argument("--once", action="store_true", help="print one page and end")


def run(arguments: argparse.Namespace) -> int:
    """Show the page until interrupted."""
    from rich.console import Console
    from rich.live import Live

    from ..addresses import AddressError
    from ..client import Client
    from ..keys import KeyFileError

    try:
        with Client(arguments.connect, **connection_options(arguments)) as client:
            if arguments.once:
                Console().print(page(client.stats(), {}))
                return 0
            rates = Rates()
            with Live(auto_refresh=False, screen=True) as live:
                while True:
                    stats = client.stats()
                    rate = rates.update(stats, time.monotonic())
                    live.update(page(stats, rate), refresh=True)
                    time.sleep(arguments.interval)
    except TimeoutError as error:
        raise CommandError(str(error)) from None
    except (AddressError, KeyFileError, ValueError) as error:
        raise UsageError(str(error)) from None


class Rates:
    """Tokens a second of each worker, from its totals."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def update(self, stats: "Stats", now: float) -> Mapping[str, float]:
        """Return the rate of every worker that was there last time."""
        rates = {}
        for worker in stats.workers:
            name, tokens = str(worker.get("name")), float(worker.get("generated_tokens", 0))
            if name in self._last:
                before, then = self._last[name]
                rates[name] = (tokens - before) / max(now - then, 1e-9)
            self._last[name] = (tokens, now)
        return rates


def page(stats: "Stats", rates: Mapping[str, float]) -> "RenderableType":
    """Return the page: a line about the broker, a table of the workers."""
    from rich.console import Group
    from rich.table import Table

    broker = stats.stats
    line = (
        f"[bold]octavo[/bold]  up {float(broker.get('uptime', 0)):.0f} s  "
        f"clients {broker.get('clients')}  requests: {broker.get('running')} running, "
        f"{broker.get('queued')} queued, {broker.get('held')} held, {broker.get('ended')} ended, "
        f"{broker.get('stalled')} without credit"
        + ("  [yellow]draining[/yellow]" if broker.get("draining") else "")
    )
    table = Table(expand=True)
    columns = ("worker", "model", "held", "run", "wait", "blocks", "slots", "accept")
    for column in (*columns, "tok/s"):
        table.add_column(column, justify="left" if column in ("worker", "model") else "right")
    for worker in stats.workers:
        name = str(worker.get("name"))
        gone = "" if worker.get("connected") else " [red](not connected)[/red]"
        table.add_row(
            name[:12] + gone,
            str(worker.get("models")),
            f"{worker.get('load')}/{worker.get('capacity')}",
            _text(worker.get("num_running", worker.get("runs"))),
            _text(worker.get("num_paused", worker.get("paused_runs"))),
            _used(worker, "blocks"),
            _used(worker, "slots"),
            _share(worker.get("accepted_tokens"), worker.get("drafted_tokens")),
            f"{rates[name]:.0f}" if name in rates else "",
        )
    return Group(line, table)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _used(worker: Mapping[str, Any], what: str) -> str:
    total, free = worker.get(f"total_{what}"), worker.get(f"free_{what}")
    if not total or free is None:
        return ""
    return f"{total - free - worker.get(f'cached_{what}', 0)}/{total}"


def _share(part: Any, whole: Any) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else ""
