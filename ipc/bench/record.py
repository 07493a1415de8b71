"""One line of figures for a run."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from engine.phases import PHASES

from .arrivals import Arrivals
from .measure import Measured
from .request_times import RequestTimes
from .spread import plain, spread

TIMES: dict[str, Callable[[RequestTimes], float | None]] = {
    "time_to_first_token_s": lambda times: times.to_first_token,
    "time_per_token_s": lambda times: times.per_token,
    "queue_s": lambda times: times.queued,
    "latency_s": lambda times: times.to_last_token,
}
"""What is known of each request, by its name in the record."""


def make_record(workload: str, arrivals: Arrivals, run: Measured) -> dict[str, Any]:
    """Return the figures of ``run`` in plain values; what is not known is None."""
    before, after = run.before.scheduler, run.after.scheduler
    usages = [request.usage for request in run.requests if request.usage is not None]
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    output_tokens = sum(request.num_tokens for request in run.requests)
    lookups = after.lookup_tokens - before.lookup_tokens
    rounds = run.after.num_steps - run.before.num_steps
    return {
        "benchmark": "workload",
        "workload": workload,
        "arrivals": arrivals.described(),
        "sessions": run.num_sessions,
        "requests": len(run.requests),
        "finish_reasons": dict(Counter(str(each.finish_reason) for each in run.requests)),
        "first_error": next((each.error for each in run.requests if each.error), None),
        "seconds": plain(run.seconds),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "computed_prompt_tokens": after.prompt_tokens - before.prompt_tokens,
        "hit_rate": _share(after.hit_tokens - before.hit_tokens, lookups),
        "output_tokens": output_tokens,
        "output_tokens_per_second": _share(output_tokens, run.seconds),
        "prompt_tokens_per_second": _share(prompt_tokens, run.seconds),
        "requests_per_second": _share(len(run.requests), run.seconds),
        "sessions_per_second": _share(run.num_sessions, run.seconds),
        **_times(run.requests),
        "groups": _groups(run.requests),
        "rounds": rounds,
        "mean_batch_width": _mean(run, "mean_batch_width", "num_steps"),
        "mean_decode_width": _mean(run, "mean_decode_width", "num_decode_steps"),
        "preemptions": after.preemptions - before.preemptions,
        "failed_rounds": after.failures - before.failures,
        "drafts": _drafts(run),
        "step_s": spread(run.step_seconds),
        "step_split_s": _split(run),
        "timeline": run.timeline.described(),
        "peak_memory_bytes": run.after.peak_memory_bytes,
    }


def _times(requests: Sequence[RequestTimes]) -> dict[str, Any]:
    times: dict[str, Any] = {name: spread(map(of, requests)) for name, of in TIMES.items()}
    times["gap_s"] = spread(gap for request in requests for gap in request.gaps)
    return times


def _groups(requests: Sequence[RequestTimes]) -> dict[str, Any]:
    """Times of each group, where there is more than one."""
    names = list(dict.fromkeys(request.group for request in requests))
    if len(names) < 2:
        return {}
    by_name = {name: [each for each in requests if each.group == name] for name in names}
    return {name: {"requests": len(some), **_times(some)} for name, some in by_name.items()}


def _mean(run: Measured, mean: str, count: str) -> float | None:
    """The mean of this run alone, from means and counts since loading."""
    counts = [getattr(stats, count) for stats in (run.before, run.after)]
    sums = [
        getattr(stats, mean) * of for stats, of in zip((run.before, run.after), counts, strict=True)
    ]
    return _share(sums[1] - sums[0], counts[1] - counts[0])


def _drafts(run: Measured) -> dict[str, Any] | None:
    """Drafts made and accepted, by their position in the window; None if there were none."""
    drafted = _since(run.before.drafted_by_position, run.after.drafted_by_position)
    accepted = _since(run.before.accepted_by_position, run.after.accepted_by_position)
    if not sum(drafted):
        return None
    return {
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "drafted_by_position": drafted,
        "accepted_by_position": accepted,
    }


def _since(before: Sequence[int], after: Sequence[int]) -> list[int]:
    padded = [*before, *[0] * (len(after) - len(before))]
    return [now - then for then, now in zip(padded, after, strict=True)]


def _split(run: Measured) -> dict[str, float]:
    """Seconds of all steps together by phase; ``other`` is what no phase was charged with."""
    before, after = asdict(run.before.phases), asdict(run.after.phases)
    split = {phase: after[f"{phase}_seconds"] - before[f"{phase}_seconds"] for phase in PHASES}
    split["other"] = max(0.0, sum(run.step_seconds) - sum(split.values()))
    return {phase: plain(seconds) for phase, seconds in split.items()}


def _share(part: float, whole: float) -> float | None:
    return plain(part / whole) if whole else None
