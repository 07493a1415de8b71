"""Requests that are waited for together: step until they have ended, whatever else runs."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .answer import Answer, Delta
from .errors import EngineError, RequestError
from .sampling_params import SamplingParams
from .submission import Prompt

if TYPE_CHECKING:
    from .engine import Engine


def generate(
    engine: "Engine",
    prompts: Iterable[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
) -> Iterator[Answer]:
    """Decode all ``prompts`` together; yield the answers in their order, n for each prompt.

    ``params`` holds for all prompts, or is a sequence of one for each. Leaving early cancels what
    is not done. Raises RequestError for what cannot be run, and EngineError where all that is left
    is paused.
    """
    prompts = several("prompts", prompts)
    each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise RequestError(f"{len(each)} params for {len(prompts)} prompts")
    waiting: list[Answer] = []
    by_sample: dict[tuple[str, int], Answer] = {}
    own: set[str] = set()
    awaited = engine.undelivered.awaited
    try:
        for prompt, one in zip(prompts, each, strict=True):
            request_id = engine.submit(prompt, one)
            own.add(request_id)
            awaited.add(request_id)
            for index in range(len(engine.runs.sequences(request_id))):
                answer = Answer(request_id, index, engine.seed_of(request_id))
                by_sample[request_id, index] = answer
                waiting.append(answer)
        while waiting:
            deltas = _gained(engine, own)
            for delta in deltas:
                by_sample[delta.request_id, delta.index].add(delta)
            ended = {one.request_id for one in deltas if one.finish_reason is not None}
            ended -= engine.runs.by_request.keys()
            own -= ended
            awaited -= ended  # from here on others may have these names
            while waiting and waiting[0].finish_reason is not None:
                yield waiting.pop(0)
    finally:
        engine.undelivered.take_for(own)  # nobody is going to read it
        awaited -= own
        for answer in waiting:
            if answer.request_id in own:
                engine.cancel(answer.request_id)


def run_until_done(engine: "Engine", request_ids: Sequence[str]) -> list[Delta]:
    """Step until these requests of one sample have ended; return the last delta of each.

    If it is interrupted, what is not done is cancelled.
    """
    left = set(request_ids)
    last: dict[str, Delta] = {}
    try:
        while left:
            for delta in _gained(engine, left):
                if delta.finish_reason is not None:
                    last[delta.request_id] = delta
            left -= last.keys()
    finally:
        for request_id in left:
            engine.cancel(request_id)
    return [last[request_id] for request_id in request_ids]


def _gained(engine: "Engine", request_ids: Container[str]) -> list[Delta]:
    """One step for these requests. Raises EngineError where no step will ever bring anything."""
    deltas = engine.step_for(request_ids)
    if not deltas and not engine.has_work:
        raise EngineError("what is waited for is paused, and nothing else runs")
    return deltas


def several(name: str, prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return ``prompts`` as a list. Raises RequestError for a text: to Python it is many."""
    if isinstance(prompts, str):
        raise RequestError(f"{name} must be several, not one text: [{prompts!r:.60}]")
    return list(prompts)
