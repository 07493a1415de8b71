"""What a worker does with its engine: runs are submitted, stepped, paused without credit.

It lives on the engine's thread, takes commands and returns events; it never sees a socket.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .lingering import Lingering
from .messages import Run
from .served_engine import DeltaLike, LoadedEngine
from .token_ids import unpack_ids
from .wire_params import from_wire


@dataclass(frozen=True, slots=True)
class BeginRun:
    """A command: submit this run."""

    run: Run


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """A command: a run may emit this many tokens in all."""

    run: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CancelRun:
    """A command: end a run."""

    run: str


@dataclass(frozen=True, slots=True)
class EngineReady:
    """An event: the engine is loaded."""

    models: tuple[str, ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class RunRefused:
    """An event: the engine did not take the run."""

    run: str
    code: str
    message: str


class Stepped(tuple[DeltaLike, ...]):
    """An event: what the runs gained in one round. A tuple, as one is made for every round."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """An event: the engine's statistics."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EngineDied:
    """An event: the engine's thread ended with an exception. There is no other after it."""

    message: str


Command = BeginRun | GrantCredit | CancelRun
Event = EngineReady | RunRefused | Stepped | EngineFigures | EngineDied


@dataclass(slots=True)
class _Progress:
    samples_left: int
    tokens: int
    credit: int
    paused: bool = False


class EngineDriver:
    """Runs of one engine. A run whose credit is used up pauses, and no other."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._engine = loaded.engine
        self._rows = loaded.rows
        self._make_params: Callable[[Mapping[str, Any]], Any] = loaded.make_params
        self._runs: dict[str, _Progress] = {}
        self._gained: Sequence[DeltaLike] = ()
        self._lingering = Lingering()

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._engine.has_work

    @property
    def num_runs(self) -> int:
        """How many runs have not ended."""
        return len(self._runs)

    @property
    def has_room(self) -> bool:
        """Whether more runs would decode in the next round than are there."""
        return len(self._runs) < self._rows

    def handle(self, command: Command) -> list[Event]:
        """Do what a command says. Commands about unknown runs change nothing."""
        if isinstance(command, BeginRun):
            refused = self._begin(command.run)
            return [] if refused is None else [refused]
        progress = self._runs.get(command.run)
        if progress is None:
            return []
        if isinstance(command, CancelRun):
            self._engine.cancel(command.run)
            return []
        progress.credit = max(progress.credit, command.tokens)
        if progress.paused and progress.tokens < progress.credit:
            progress.paused = False
            self._engine.resume(command.run)
        return []

    def _begin(self, run: Run) -> RunRefused | None:
        try:
            params = from_wire(run.params)
            # the tenant is part of the salt: tenants never share cached blocks
            params["salt"] = (
                f"{run.tenant}\x00{params.get('salt') or ''}"
                if run.tenant
                else (params.get("salt") or "")
            )
            emitted = unpack_ids(run.emitted_ids)
            self._engine.submit(
                _prompt(run),
                self._make_params(params),
                request_id=run.run,
                tenant=run.tenant,
                emitted=emitted,
            )
        except ValueError as error:  # the engine's RequestError is one
            return RunRefused(run.run, "bad_request", str(error))
        except Exception as error:
            return RunRefused(run.run, "internal", f"{type(error).__name__}: {error}")
        samples = run.params.get("n") or 1
        progress = _Progress(samples, len(emitted), run.window)
        self._runs[run.run] = progress
        self._lingering.begin(run.run, run.linger)
        self._pause_if_spent(run.run, progress)
        return None

    def step(self, now: float) -> Stepped | None:
        """Run one round of the engine. What it returns may be told at once, then ``account``."""
        self._gained = told = self._engine.step()
        if self._lingering.is_used:
            told = self._lingering.sift(told, now)
        return Stepped(told) if told else None

    def account(self) -> Stepped | None:
        """Count what the round gained; pause runs that have used up their credit.

        Then nothing waits any longer: more is granted only once it has arrived.
        """
        deltas, self._gained = self._gained, ()
        paused = False
        for delta in deltas:
            progress = self._runs.get(delta.request_id)
            if progress is None:
                continue
            progress.tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                progress.samples_left -= 1
                if progress.samples_left == 0:
                    del self._runs[delta.request_id]
                    self._lingering.end(delta.request_id)
        for delta in deltas:
            progress = self._runs.get(delta.request_id)
            if progress is not None:
                paused |= self._pause_if_spent(delta.request_id, progress)
        return self.release() if paused else None

    def release(self) -> Stepped | None:
        """Return what still waits for later gains."""
        told = self._lingering.release()
        return Stepped(told) if told else None

    def _pause_if_spent(self, run: str, progress: _Progress) -> bool:
        if progress.paused or progress.tokens < progress.credit:
            return False
        progress.paused = True
        self._engine.pause(run)
        return True

    def figures(self) -> EngineFigures:
        """Return the engine's statistics, as far as the wire carries them."""
        figures = _plain_figures(self._engine.stats())
        figures["rows"] = self._rows
        figures["free_rows"] = max(self._rows - len(self._runs), 0)
        figures["runs"] = len(self._runs)
        figures["paused_runs"] = sum(progress.paused for progress in self._runs.values())
        return EngineFigures(figures)


def _plain_figures(stats: Any) -> dict[str, Any]:
    """Flatten a dataclass or mapping of numbers, and of more such, into one map."""
    if dataclasses.is_dataclass(stats):
        stats = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
    figures: dict[str, Any] = {}
    for name, value in stats.items():
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            figures |= _plain_figures(value)
        elif isinstance(value, int | float | str):
            figures[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(i, int | float) for i in value):
            figures[name] = list(value)
    return figures


def _prompt(run: Run) -> str | tuple[int, ...] | list[dict[str, str]]:
    if run.kind == "text":
        return run.text
    if run.kind == "tokens":
        return unpack_ids(run.prompt_ids)
    return [{"role": part.role, "content": part.content} for part in run.messages]
