"""The two ends of a batch job: opened, locked, compared with each other, and repaired, in order.

Nothing in the output is changed before all of it proved to belong to the input.
"""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .batch_file import BatchFile, BatchFileError, BatchPipe, Output
from .batch_ledger import BatchLedger, Comparison
from .batch_line import LineParser
from .batch_summary import BatchSummary
from .input_lines import InputLines


class BatchTask:
    """An open input and an open output. ``-`` is stdin or stdout, neither of which can resume."""

    def __init__(
        self,
        input_name: str,
        output_name: str,
        *,
        model: str,
        make_parser: Callable[[], LineParser],
        append: bool = False,
        retry_errors: bool = False,
    ):
        """Open both; raise BatchFileError if one cannot be used, or if they do not belong together.

        ``append`` keeps records of other inputs; ``retry_errors`` drops the error records.
        """
        self.ledger: BatchLedger | None = None
        self.comparison: Comparison | None = None  # None: the input is a pipe
        self.repaired_bytes = 0
        self._descriptor = _open_input(input_name)
        self._output_name = output_name
        self.output = self._open_output()
        try:
            self._compare(model, make_parser, append=append, retry_errors=retry_errors)
        except BaseException:
            self.output.close()
            raise

    @property
    def total(self) -> int | None:
        """How many lines the input has, if it is a file."""
        return None if self.comparison is None else self.comparison.total

    @property
    def resumable(self) -> bool:
        """Whether the same job run again goes on where this one stops."""
        return self.comparison is not None and self.ledger is not None

    def lines(self) -> InputLines:
        """Return the input, from its start."""
        if self.comparison is not None:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        return InputLines(self._descriptor)

    def summary_if_done(self) -> BatchSummary | None:
        """Return what there is to report if no line is left to run."""
        if self.comparison is None or self.comparison.pending or self.ledger is None:
            return None
        return BatchSummary(
            kept_answers=self.comparison.answered,
            kept_errors=self.comparison.failed,
            first_error=self.ledger.first_error,
        )

    def __enter__(self) -> "BatchTask":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.output.close()
        if self._descriptor != 0:
            os.close(self._descriptor)

    def _open_output(self) -> Output:
        name = self._output_name
        if name == "-":
            sys.stdout.flush()
            return BatchPipe(1)
        path = Path(name)
        try:
            if path.exists():
                if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                    raise BatchFileError(f"{name} is the input too; name another --output")
                if not path.is_file() and not path.is_dir():
                    return BatchPipe(os.open(path, os.O_WRONLY))
            return BatchFile(path)
        except OSError as error:
            raise BatchFileError(f"cannot write {name}: {error.strerror}") from None

    def _compare(
        self,
        model: str,
        make_parser: Callable[[], LineParser],
        *,
        append: bool,
        retry_errors: bool,
    ) -> None:
        ledger = BatchLedger(Path(self._output_name), model=model, foreign=append)
        if isinstance(self.output, BatchFile):
            self.ledger = ledger
            ledger.read(self.output.records(), skip_errors=retry_errors)
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self.comparison = ledger.compare(InputLines(self._descriptor), make_parser())
        elif isinstance(self.output, BatchFile) and self.output.size and not append:
            raise BatchFileError(
                f"{self._output_name} has records, and a pipe cannot be compared with them: name an"
                " input file to continue, another --output, or add to it with --append"
            )
        if isinstance(self.output, BatchFile):
            if retry_errors:
                self.output.keep(lambda record: record["error"] is None)
            self.repaired_bytes = self.output.repair()


def _open_input(name: str) -> int:
    if name == "-":
        return 0
    try:
        descriptor = os.open(name, os.O_RDONLY)
    except OSError as error:
        raise BatchFileError(f"cannot read {name}: {error.strerror}") from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BatchFileError(f"cannot read {name}: it is a folder; name a file of requests, or -")
    return descriptor
