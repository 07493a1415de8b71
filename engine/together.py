"""Requests that are waited for together: step until they have ended, whatever else runs."""

from collections.abc import Iterable, Iterator, Sequence
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
    inbox, inboxes = list[Delta](), engine.undelivered.inboxes
    try:
        for prompt, one in zip(prompts, each, strict=True):
            request_id = engine.submit(prompt, one)
            own.add(request_id)
            inboxes[request_id] = inbox
            for index in range(len(engine.runs.sequences(request_id))):
                answer = Answer(request_id, index, engine.seed_of(request_id))
                by_sample[request_id, index] = answer
                waiting.append(answer)
        while waiting:
            for delta in _gained(engine, inbox):
                by_sample[delta.request_id, delta.index].add(delta)
                if delta.finish_reason is not None and delta.request_id not in engine.runs:
                    own.discard(delta.request_id)
                    inboxes.pop(delta.request_id, None)  # from here on others may have this name
            while waiting and waiting[0].finish_reason is not None:
                yield waiting.pop(0)
    finally:
        for answer in waiting:
            if answer.request_id in own:
                own.remove(answer.request_id)
                del inboxes[answer.request_id]
                engine.cancel(answer.request_id)


def run_until_done(engine: "Engine", request_ids: Sequence[str]) -> list[Delta]:
    """Step until these requests of one sample have ended; return the last delta of each.

    If it is interrupted, what is not done is cancelled.
    """
    last: dict[str, Delta] = {}
    inbox, inboxes = list[Delta](), engine.undelivered.inboxes
    inboxes |= dict.fromkeys(request_ids, inbox)
    try:
        while len(last) < len(request_ids):
            for delta in _gained(engine, inbox):
                if delta.finish_reason is not None:
                    last[delta.request_id] = delta
    finally:
        for request_id in request_ids:
            del inboxes[request_id]
            if request_id not in last:
                engine.cancel(request_id)
    return [last[request_id] for request_id in request_ids]


def _gained(engine: "Engine", inbox: list[Delta]) -> list[Delta]:
    """One step for an inbox. Raises EngineError where no step will ever bring anything."""
    deltas = engine.step_for(inbox)
    if not deltas and not engine.scheduler.has_work:
        raise EngineError("what is waited for is paused, and nothing else runs")
    return deltas


def several(name: str, prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return ``prompts`` as a list. Raises RequestError for a text: to Python it is many."""
    if isinstance(prompts, str):
        raise RequestError(f"{name} must be several, not one text: [{prompts!r:.60}]")
    return list(prompts)
