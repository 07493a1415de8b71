"""The table that ends a batch."""

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..batch_summary import BatchSummary


def print_summary(summary: "BatchSummary", *, as_json: bool, to_stdout: bool) -> None:
    """Print the table on stderr, or one line of JSON: on stdout unless the answers went there."""
    if as_json:
        print(json.dumps(summary.as_json()), file=sys.stdout if to_stdout else sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("requests", "failed", show_edge=False)
    for title in ("prompt tokens", "cached", "output tokens", "tokens/s", "mean batch width"):
        table.add_column(title, justify="right")
    table.add_column("peak memory", justify="right")
    width, memory = summary.mean_batch_width, summary.peak_memory_bytes
    table.add_row(
        f"{summary.requests:,}",
        f"{summary.all_failed:,}",
        f"{summary.prompt_tokens:,}",
        f"{summary.cached_tokens:,}",
        f"{summary.completion_tokens:,}",
        f"{summary.tokens_per_second:,.1f}",
        "-" if width is None else f"{width:.2f}",
        "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
    )
    kept = summary.kept_answers + summary.kept_errors
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a log file has no edge to wrap at
    console.print(table)
    if kept:
        console.print(
            f"{kept:,} of the requests were done by an earlier run; tokens are this run's"
        )
