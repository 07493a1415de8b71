"""Tells requests what they have gained: commits become deltas."""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from scheduler.round import Commit
from scheduler.scheduler import Scheduler

from .answer import Delta, Usage
from .runs import Runs
from .undelivered import Undelivered

logger = logging.getLogger("octavo")


class Teller:
    """Tells of each commit once, and of an end for good: its run is then forgotten."""

    def __init__(
        self,
        scheduler: Scheduler,
        runs: Runs,
        undelivered: Undelivered,
        forget: Callable[[int], None],
    ) -> None:
        """``forget`` is told which sequences have ended."""
        self._scheduler = scheduler
        self._runs = runs
        self._undelivered = undelivered
        self._forget = forget

    def tell(self, commits: Iterable[Commit]) -> None:
        """Tell of ``commits``; an answer that cannot be told of ends, and the others do not.

        Raises what is no Exception, an interruption for one, when all are told of.
        """
        deltas: list[Delta] = []
        interruption: BaseException | None = None
        for commit in commits:
            run = self._runs.by_sequence.get(commit.seq_id)
            if run is None or (not commit.tokens and commit.finish is None):
                continue
            try:
                delta = run.delta(commit, partial(self._usage, commit.seq_id))
            except BaseException as error:
                if isinstance(error, Exception):
                    logger.exception("request %s failed", run.request.request_id)
                else:
                    interruption = error
                delta = run.failed_delta(self._usage(commit.seq_id))
            deltas.append(delta)
            if delta.finish_reason is not None:
                self._end(commit.seq_id)
        self._undelivered.add(deltas)
        if interruption is not None:
            raise interruption

    def _usage(self, seq_id: int) -> Usage:
        return Usage.of(self._scheduler.sequences[seq_id])

    def _end(self, seq_id: int) -> None:
        self._scheduler.cancel(seq_id)  # where only the answer has ended
        self._forget(seq_id)
        self._runs.end(seq_id)
