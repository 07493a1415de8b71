"""Decode steps of rows that run together, timed: of given prompts, or with a prefix and without.

With and without: batches of both kinds in turns on one engine. Engines apart differ by some percent
of the host's time, and of those that live at once only one may run products in chains.
"""

import time
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from engine import Engine, SamplingParams

from .pairs import measure_pairs

STEPS = 24
WARM_UP = 6
PAIRS = 9
MOST_TOKENS = 400  # of a request: the first ones decode while the last ones are read


def make_prompts(rows: int, context: int, prefix: int = 0, batch: int = 0) -> list[list[int]]:
    """Prompts of ``context`` tokens each, after ``prefix`` tokens that all of them share.

    Those ``prefix`` tokens are the same in every ``batch``, the others in none.
    """
    shared = np.random.default_rng([0, prefix]).integers(10, 8000, prefix).tolist()
    own = np.random.default_rng([1 + batch, context]).integers(10, 8000, (rows, context)).tolist()
    return [shared + prompt for prompt in own]


def prefill(engine: Engine, prompts: Sequence[list[int]]) -> list[str]:
    """Submit ``prompts`` and step until all have a first token; return their request ids."""
    params = SamplingParams(max_tokens=MOST_TOKENS, ignore_eos=True, temperature=0.0)
    ids = [engine.submit(prompt, params) for prompt in prompts]
    waiting = set(ids)
    while waiting:
        waiting -= {delta.request_id for delta in engine.step() if delta.token_ids}
    return ids


def time_steps(engine: Engine) -> list[tuple[float, int]]:
    """Seconds of each of ``STEPS`` steps, and how many requests it gave tokens."""
    steps = []
    for _ in range(STEPS):
        started = time.perf_counter()
        deltas = engine.step()
        seconds = time.perf_counter() - started
        steps.append((seconds, len({delta.request_id for delta in deltas if delta.token_ids})))
    return steps


def measure_engine(engine: Engine, prompts: Sequence[list[int]]) -> dict[str, float]:
    """Prefill and then decode ``prompts``; milliseconds of a step and where they go."""
    started = time.perf_counter()
    prefill(engine, prompts)
    prefilled = time.perf_counter() - started
    for _ in range(WARM_UP):
        engine.step()
    before = engine.stats().phases
    begun = time.perf_counter()
    times = [seconds for seconds, _ in time_steps(engine)]
    whole = time.perf_counter() - begun
    after = engine.stats().phases
    spent = {
        f"{name}_ms": (getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds"))
        / STEPS
        * 1e3
        for name in ("plan", "build", "device", "sample", "text", "commit")
    }
    return {
        "step_ms": float(np.median(times)) * 1e3,
        "mean_ms": whole / STEPS * 1e3,
        **spent,
        "prefill_tokens_per_s": sum(map(len, prompts)) / prefilled,
    }


class Batches:
    """Batches of ``rows`` prompts, one after the other on one engine; only prefixes come again."""

    def __init__(self, engine: Engine, rows: int, context: int) -> None:
        self.engine = engine
        self.rows = rows
        self.context = context
        self.num_batches = 0
        self.sampled: dict[int, list[float]] = {}  # by prefix: seconds of the phase that waits

    def step_seconds(self, prefix: int) -> float:
        """Decode a new batch whose rows share ``prefix`` tokens (whole blocks); time a step.

        That is the median of STEPS steps in which all rows decode. Raises RuntimeError if some did
        not, or if other tokens than the prefix were found in the cache, or not for all rows; one of
        them may have computed it.
        """
        prompts = make_prompts(self.rows, self.context, prefix, self.num_batches)
        self.num_batches += 1
        hits = self.engine.stats().scheduler.hit_tokens
        ids = prefill(self.engine, prompts)
        hits = self.engine.stats().scheduler.hit_tokens - hits
        if not (self.rows - 1) * prefix <= hits <= self.rows * prefix:
            raise RuntimeError(f"{self.rows} rows found {hits} tokens of a prefix of {prefix}")
        for _ in range(WARM_UP):
            self.engine.step()
        before = self.engine.stats().phases.sample_seconds
        steps = time_steps(self.engine)
        waited = (self.engine.stats().phases.sample_seconds - before) / STEPS
        self.sampled.setdefault(prefix, []).append(waited)
        if any(count < self.rows for _, count in steps):
            raise RuntimeError(f"not all of {self.rows} rows decoded in each step: {steps}")
        for request_id in ids:
            self.engine.cancel(request_id)
        while self.engine.has_work:
            self.engine.step()
        mx.synchronize()  # what was launched ahead is not the next batch's
        return float(np.median([seconds for seconds, _ in steps]))


def measure_shared(engine: Engine, rows: int, context: int, prefix: int) -> dict[str, float]:
    """A step of rows that share ``prefix`` tokens over one of rows without them, by pairs.

    Beside each the phase in which it waits for the device: as long as that is long, the host's time
    does not count.
    """
    batches = Batches(engine, rows, context)
    ratio = measure_pairs(
        lambda: batches.step_seconds(prefix), lambda: batches.step_seconds(0), PAIRS
    )
    return {
        "step_ms": ratio.ours * 1e3,
        "alone_ms": ratio.theirs * 1e3,
        "sample_ms": float(np.median(batches.sampled[prefix])) * 1e3,
        "alone_sample_ms": float(np.median(batches.sampled[0])) * 1e3,
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
    }
