"""What an output already says about its input, so that a job goes on where another stopped.

An answer belongs to its custom_id, an error record to its line: several bad lines may share a
custom_id or have none. The digest in either tells whether the same thing was asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .batch_file import BatchFileError
from .batch_line import LineParser
from .batch_record import ID_PREFIX, model_of
from .batch_request import BadLine, BatchRequest
from .input_lines import InputLines

Settled = Literal["answered", "failed"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many lines of an input have an answer, an error record, or neither yet."""

    answered: int
    failed: int
    pending: int

    @property
    def total(self) -> int:
        """All lines."""
        return self.answered + self.failed + self.pending


class BatchLedger:
    """The records of an output. ``settles`` is asked about every line of the input, in order."""

    def __init__(self, path: Path, *, model: str, foreign: bool = False):
        self._path = path
        self._model = model
        self._foreign = foreign  # records of other inputs are kept instead of refused
        self._answers: dict[str, str] = {}  # custom_id -> digest
        self._errors: dict[int, str] = {}  # line -> digest
        self.first_error: str | None = None  # "line 7: why", of the first such record
        self._unmatched: dict[str | int, None] = {}  # keys of both, until a line claims them

    def read(
        self, records: Iterable[tuple[int, dict[str, Any]]], *, skip_errors: bool = False
    ) -> None:
        """Take in the records of the output; raise BatchFileError if they are another model's."""
        for number, record in records:
            model = model_of(record)
            if model is not None and model != self._model and not self._foreign:
                raise self._refusal(
                    f"line {number} was answered by the model {model!r}, not by {self._model!r}"
                )
            digest = str(record["id"]).removeprefix(ID_PREFIX)
            error = record.get("error")
            if error is None:
                self._answers[str(record["custom_id"])] = digest
                self._unmatched[str(record["custom_id"])] = None
            elif not skip_errors:
                line = int(error["line"])
                self._errors[line] = digest
                self._unmatched[line] = None
                self.first_error = self.first_error or f"line {line}: {error['message']}"

    def compare(self, lines: InputLines, parser: LineParser) -> Comparison:
        """Read the whole input and compare it with the output.

        Raises BatchFileError if the output has a record that no line of the input asks for.
        """
        counts = {"answered": 0, "failed": 0, None: 0}
        for line in lines:
            counts[self.settled(parser.parse(line))] += 1
        if self._unmatched and not self._foreign:
            raise self._refusal(
                f"it has {self._name_unmatched()}, which this input does not ask for"
            )
        return Comparison(counts["answered"], counts["failed"], counts[None])

    def settled(self, outcome: BatchRequest | BadLine) -> Settled | None:
        """Return which record the output has for this line already, if any.

        Raises BatchFileError if it has one for something else that was asked under its name.
        """
        custom_id, line = outcome.custom_id, outcome.line
        if isinstance(outcome, BatchRequest) and custom_id in self._answers:
            return "answered" if self._claim(outcome.custom_id, outcome) else None
        if line in self._errors:
            return "failed" if self._claim(line, outcome) else None
        return None

    def _name_unmatched(self) -> str:
        names = [
            f"an error of line {key}" if isinstance(key, int) else f"an answer to {key!r}"
            for key in self._unmatched
        ]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _claim(self, key: str | int, outcome: BatchRequest | BadLine) -> bool:
        digest = self._errors[key] if isinstance(key, int) else self._answers[key]
        if digest == outcome.digest:
            self._unmatched.pop(key, None)
            return True
        if self._foreign:
            return False
        if isinstance(key, int):
            raise BatchFileError(
                f"line {key} of the input changed since its error went into {self._path};"
                " --retry-errors drops the error records and runs their lines again"
            )
        raise self._refusal(
            f"its answer to {key!r} is to another request than line {outcome.line} of the input"
            " (another prompt, or other sampling fields or flags)"
        )

    def _refusal(self, reason: str) -> BatchFileError:
        return BatchFileError(
            f"{self._path} is the output of another job: {reason}. Name another --output, or keep"
            " what is there and add to it with --append"
        )
