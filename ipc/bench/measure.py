"""Runs the sessions of a workload on an engine and notes when what happened.

open loop    users come when they come, however busy the engine is (at once, or at random)
closed loop  the next user comes when one is done
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.answer import Delta
from engine.sampling_params import SamplingParams
from engine.statistics import EngineStats

from .arrivals import Arrivals
from .request_times import RequestTimes
from .session import Message, Session
from .timeline import Timeline


class MeasuredEngine(Protocol):
    """The part of ``engine.Engine`` that a run uses."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""

    def submit(
        self, prompt: str | Sequence[Message], params: SamplingParams, *, request_id: str
    ) -> str:
        """Take a request; RequestError if it cannot run."""

    def has_begun(self, request_id: str) -> bool:
        """Whether a request had its first round."""

    def step(self) -> list[Delta]:
        """Run one round."""

    def stats(self) -> EngineStats:
        """Return the engine's counts so far."""


@dataclass(slots=True)
class Measured:
    """What a run gave; times in seconds."""

    num_sessions: int
    before: EngineStats
    after: EngineStats
    seconds: float  # from the start to the last answer's end
    step_seconds: list[float]  # wall time of each step
    requests: list[RequestTimes]
    timeline: Timeline


def measure(
    engine: MeasuredEngine,
    sessions: Sequence[Session],
    arrivals: Arrivals,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Measured:
    """Run all ``sessions`` to their ends. Raises RequestError if the engine refuses a prompt."""
    before = engine.stats()
    crowd = _Crowd(engine, sessions, arrivals, clock)
    steps: list[float] = []
    timeline = Timeline(before)
    while True:
        wait = crowd.let_in()
        if engine.has_work:
            begin = clock()
            deltas = engine.step()
            end = clock()
            steps.append(end - begin)
            if timeline.wants_sample:
                timeline.add(end - crowd.started, engine.stats())
            crowd.hear(deltas, begin, end)
        elif wait is not None:
            sleep(wait)
        else:
            break
    if crowd.num_talking:
        raise RuntimeError(f"the engine stopped with {crowd.num_talking} requests unanswered")
    after = engine.stats()
    seconds = crowd.ended - crowd.started
    return Measured(len(sessions), before, after, seconds, steps, crowd.requests, timeline)


@dataclass(slots=True)
class _Talk:
    """A session while it runs."""

    session: Session
    answers: list[str] = field(default_factory=list)


class _Crowd:
    """All users of a run: who is still to come, who talks, what each was answered."""

    def __init__(
        self,
        engine: MeasuredEngine,
        sessions: Sequence[Session],
        arrivals: Arrivals,
        clock: Callable[[], float],
    ) -> None:
        self.requests: list[RequestTimes] = []
        self.started = self.ended = clock()
        self._engine = engine
        self._clock = clock
        self._coming = list(zip(arrivals.offsets(len(sessions)), sessions, strict=True))
        self._places = arrivals.concurrency or len(sessions)
        self._closed_loop = arrivals.concurrency is not None
        self._talks: dict[str, tuple[_Talk, RequestTimes]] = {}  # running, by request id
        self._waiting: set[str] = set()  # those that had no round yet
        self._num_tokens = 0

    @property
    def num_talking(self) -> int:
        """How many requests are not answered yet."""
        return len(self._talks)

    def let_in(self) -> float | None:
        """Submit what is due. Return the seconds until the next user comes, None if nobody will."""
        now = self._clock()
        wait: float | None = None
        staying = []
        for offset, session in self._coming:
            ahead = self.started + offset - now
            stuck = not self._talks and not self._engine.has_work  # the tokens will never be there
            if len(self._talks) >= self._places:
                staying.append((offset, session))
            elif ahead > 0:
                staying.append((offset, session))
                wait = ahead if wait is None else min(wait, ahead)
            elif self._num_tokens < session.after_tokens and not stuck:
                staying.append((offset, session))
            else:
                placed = self._closed_loop or session.after_tokens > 0
                self._ask(_Talk(session), now if placed else self.started + offset)
        self._coming = staying
        return wait

    def hear(self, deltas: Sequence[Delta], begin: float, end: float) -> None:
        """Take in a step from ``begin`` to ``end``; users go on talking."""
        for request_id in [each for each in self._waiting if self._engine.has_begun(each)]:
            self._waiting.discard(request_id)
            self._talks[request_id][1].begun = begin
        for delta in deltas:
            talk, times = self._talks[delta.request_id]
            times.add(delta, end)
            self._num_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                del self._talks[delta.request_id]
                self._go_on(talk, times, end)
        if deltas:
            self.ended = end

    def _go_on(self, talk: _Talk, times: RequestTimes, now: float) -> None:
        talk.answers.append(times.text)
        if times.error is None and len(talk.answers) < talk.session.num_turns:
            self._ask(talk, now)

    def _ask(self, talk: _Talk, arrived: float) -> None:
        session = talk.session
        request_id = f"{session.name}/{len(talk.answers)}"
        times = RequestTimes(arrived, session.group)
        self._engine.submit(session.prompt(talk.answers), session.params, request_id=request_id)
        self.requests.append(times)
        self._talks[request_id] = talk, times
        self._waiting.add(request_id)
