"""Where the time of a step goes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType


@dataclass(slots=True)
class PhaseSeconds:
    """Seconds spent in each phase since loading; what a step takes beside them is in none.

    build is what the host does for a forward pass: row arrays and the graph of operations. device
    is waiting for the target's results; a drafter's whole work is draft.
    """

    plan_seconds: float = 0.0
    build_seconds: float = 0.0
    draft_seconds: float = 0.0
    device_seconds: float = 0.0
    sample_seconds: float = 0.0
    text_seconds: float = 0.0
    commit_seconds: float = 0.0


PHASES = tuple(field.name.removesuffix("_seconds") for field in fields(PhaseSeconds))


class Phases:
    """Charges time to phases. One inside another interrupts it: no second is counted twice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = PhaseSeconds()
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._phases = {name: _Phase(self, f"{name}_seconds") for name in PHASES}

    def during(self, phase: str) -> "_Phase":
        """Return a context: what passes in it belongs to ``phase``, one of PHASES (KeyError)."""
        return self._phases[phase]

    def enter(self, field: str) -> None:
        """Begin a phase."""
        self._charge()
        self._open.append(field)

    def leave(self) -> None:
        """End the phase that began last."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._open:
            spent = getattr(self.seconds, self._open[-1]) + now - self._since
            setattr(self.seconds, self._open[-1], spent)
        self._since = now


class _Phase:
    """Enters and leaves one phase, as often as it is used."""

    __slots__ = ("_field", "_phases")

    def __init__(self, phases: Phases, field: str) -> None:
        self._phases = phases
        self._field = field

    def __enter__(self) -> None:
        self._phases.enter(self._field)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._phases.leave()
