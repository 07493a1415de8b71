"""A batch job: lines in, records out, the backend kept busy in between.

Every line becomes exactly one record. Lines are read only while fewer than ``READ_AHEAD`` times the
backend's rows are submitted, so the input is never in memory as a whole. A job may be stopped
between two steps: what is running is cancelled and has no record, so the next run asks it again.
"""

import time
from collections.abc import Callable

from .bad_request_error import BadRequestError
from .batch_answer import BatchAnswer, Choice
from .batch_backend import Backend
from .batch_file import Output
from .batch_ledger import BatchLedger
from .batch_line import LineParser
from .batch_record import answer_record, error_record
from .batch_request import BadLine, BatchRequest
from .batch_summary import BatchSummary
from .input_lines import InputLines

READ_AHEAD = 4  # times the rows: what waits must cover the rows that end in the same round
IDLE_SECONDS = 0.1  # how long to wait for a pipe's next line while nothing runs


class BatchJob:
    """One run of one job."""

    def __init__(
        self,
        *,
        lines: InputLines,
        parser: LineParser,
        backend: Backend,
        output: Output,
        model: str,
        ledger: BatchLedger | None = None,
        on_progress: Callable[[BatchSummary], None] = lambda summary: None,
    ):
        self.summary = BatchSummary(first_error=ledger.first_error if ledger is not None else None)
        self._lines = lines
        self._parser = parser
        self._backend = backend
        self._output = output
        self._model = model
        self._ledger = ledger
        self._on_progress = on_progress
        self._running: dict[str, BatchAnswer] = {}
        self._samples = 0  # of the running requests
        self._stop_signal: int | None = None

    def stop(self, signal_number: int) -> None:
        """Ask the job to end after the step it is in; safe in a signal handler."""
        self._stop_signal = signal_number

    def run(self) -> BatchSummary:
        """Run to the end of the input, or until ``stop``; return what was done."""
        started_at = time.monotonic()
        try:
            while self._stop_signal is None and not (self._lines.ended and not self._running):
                self._feed()
                if self._running:
                    self._collect()
                self._on_progress(self.summary)
        finally:
            for request_id in self._running:
                self._backend.cancel(request_id)
            self.summary.signal = self._stop_signal
            self.summary.seconds = time.monotonic() - started_at
            self._take_figures()
        return self.summary

    def _feed(self) -> None:
        """Submit lines until enough is waiting, or no line is there to be read yet."""
        limit = READ_AHEAD * self._backend.max_rows
        while self._samples < limit and not self._lines.ended and self._stop_signal is None:
            line = self._lines.take(timeout=0.0 if self._running else IDLE_SECONDS)
            if line is None:
                return
            outcome = self._parser.parse(line)
            settled = self._ledger.settled(outcome) if self._ledger is not None else None
            if settled == "answered":
                self.summary.kept_answers += 1
            elif settled == "failed":
                self.summary.kept_errors += 1
            elif isinstance(outcome, BadLine):
                self._fail(outcome, outcome.code, outcome.message)
            else:
                self._submit(outcome)

    def _submit(self, request: BatchRequest) -> None:
        request_id = f"line-{request.line}"
        try:
            seed = self._backend.submit(request_id, request.prompt, request.params)
        except BadRequestError as error:
            self._fail(request, error.code, str(error))
            return
        choices = [Choice(index) for index in range(request.params.n)]
        self._running[request_id] = BatchAnswer(request, request_id, seed, choices)
        self._samples += request.params.n

    def _collect(self) -> None:
        """Run one step, and write the answers that are complete."""
        for delta in self._backend.step():
            answer = self._running.get(delta.request_id)
            if answer is None:
                continue
            answer.add(delta)
            if answer.complete:
                del self._running[delta.request_id]
                self._samples -= len(answer.choices)
                if answer.error is not None:
                    self._backend.cancel(delta.request_id)  # its other samples are of no use
                self._finish(answer)

    def _finish(self, answer: BatchAnswer) -> None:
        if answer.error is not None:
            self._fail(answer.request, "failed", answer.error)
            return
        record = answer_record(
            answer,
            model=self._model,
            created=int(time.time()),
            token_text=self._backend.token_text,
        )
        self._output.append(record)
        self.summary.answered += 1
        for name, tokens in answer.usage().items():
            setattr(self.summary, name, getattr(self.summary, name) + tokens)

    def _fail(self, request: BatchRequest | BadLine, code: str, message: str) -> None:
        self._output.append(error_record(request, code, message))
        self.summary.failed += 1
        self._note_error(request.line, message)

    def _note_error(self, line: int, message: str) -> None:
        if self.summary.first_error is None:
            self.summary.first_error = f"line {line}: {message}"

    def _take_figures(self) -> None:
        figures = self._backend.figures()
        if "mean_batch_width" in figures:
            self.summary.mean_batch_width = figures["mean_batch_width"]
        if "peak_memory_bytes" in figures:
            self.summary.peak_memory_bytes = int(figures["peak_memory_bytes"])
