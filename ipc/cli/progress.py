"""The progress bar of a batch, on stderr."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..batch_summary import BatchSummary


class BatchProgress:
    """Shows how many of ``total`` lines have a record; ``total`` is None for a pipe.

    ``shown`` None means: if stderr is a terminal.
    """

    def __init__(self, total: int | None, *, shown: bool | None = None):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        asked = sys.stderr.isatty() if shown is None else shown
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=True if shown else None),
            disable=not asked,
        )
        self._task = self._progress.add_task("decoding", total=total, tokens=0)

    def show(self, summary: "BatchSummary") -> None:
        """Show what the job has done by now."""
        failed = f" ({summary.all_failed} failed)" if summary.all_failed else ""
        self._progress.update(
            self._task,
            completed=summary.requests,
            tokens=summary.completion_tokens,
            description=f"decoding{failed}",
        )

    def __enter__(self) -> "BatchProgress":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
