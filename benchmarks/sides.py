"""The embedded hybrid with and without the prefix cache, and mlx-lm, over one set of weights."""

import time
from dataclasses import replace
from statistics import median
from typing import Any

from engine import Engine, SamplingParams

from .throughput import answer_with_mlx_lm

NEW_TOKENS = 16
CONTEXT = (
    8192  # the model's own 4,096 hold no prefix of 4,096 and an answer; its words mean nothing
)
PARAMS = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, temperature=0.0)
Prompts = list[list[int]]
Result = dict[str, Any]


class Sides:
    """One set of weights: an engine with the cache, one without, and mlx-lm."""

    def __init__(self, most_users: int, most_tokens: int) -> None:
        import mlx.core as mx

        from engine.build import build_parts
        from engine.options import EngineOptions

        from .shapes import as_loaded, build_model, twin

        self.peer = build_model("demo", mx.float32)

        def engine(*, prefix_cache: bool, num_tokens: int) -> Engine:
            loaded = replace(as_loaded(twin(self.peer), "demo"), max_context=CONTEXT)
            options = EngineOptions(
                max_rows=most_users,
                num_blocks=num_tokens // 16 + 8 * most_users,
                prefix_cache=prefix_cache,
            )
            return Engine(build_parts(loaded, options))

        self.on = engine(prefix_cache=True, num_tokens=2 * CONTEXT)
        self.off = engine(prefix_cache=False, num_tokens=most_tokens)
        self._config = self.on.scheduler.ledger.config

    def cold(self, prompts: Prompts) -> Result:
        """With an empty cache."""
        self.on.scheduler.clear_cache()
        return run_ours(self.on, prompts)

    def hit(self, prompts: Prompts, *, apart: bool = False) -> Result:
        """With what is cached; ``apart``: every row reads all its blocks itself."""
        self.on.scheduler.ledger.config = replace(self._config, finds_groups=not apart)
        result = run_ours(self.on, prompts)
        self.on.scheduler.ledger.config = self._config
        return result

    def mlx_lm(self, prompts: Prompts) -> Result:
        """mlx-lm's batch_generate, all users in one batch."""
        return run_mlx_lm(self.peer, prompts)[0]


def run_ours(engine: Engine, prompts: Prompts) -> Result:
    """All users at once."""
    before = engine.stats().scheduler
    begin = time.perf_counter()
    for prompt in prompts:
        engine.submit(prompt, PARAMS)
    first: dict[str, float] = {}
    cached, most_held, steps = 0, 0, []
    while engine.has_work:
        step_begin = time.perf_counter()
        deltas = engine.step()
        now = time.perf_counter()
        stats = engine.stats().scheduler
        most_held = max(most_held, stats.total_blocks - stats.free_blocks - stats.cached_blocks)
        if len(first) == len(deltas) == len(prompts):  # every user decoded, and nobody else ran
            steps.append(now - step_begin)
        for delta in deltas:
            first.setdefault(delta.request_id, now - begin)
            if delta.usage is not None:
                cached += delta.usage.cached_tokens
    total = time.perf_counter() - begin
    waits = sorted(first.values())
    return {
        "users": len(prompts),
        "prompt_tokens_computed": engine.stats().scheduler.prompt_tokens - before.prompt_tokens,
        "cached_tokens": cached,
        "most_blocks_held": most_held,
        "first_token_median_s": round(median(waits), 4),
        "first_token_last_s": round(waits[-1], 4),
        "step_ms": round(1e3 * median(steps), 2) if steps else None,
        "total_s": round(total, 4),
    }


def run_mlx_lm(model: Any, prompts: Prompts, **choices: Any) -> tuple[Result, Any]:
    """All users in one batch of mlx-lm's; also what it answered."""
    users = len(prompts)
    begin = time.perf_counter()
    response = answer_with_mlx_lm(model, prompts, NEW_TOKENS, users, **choices)
    result = {
        "users": users,
        "prompt_tokens_computed": sum(map(len, prompts)),
        "prompt_s": round(response.stats.prompt_time, 4),
        "step_ms": round(1e3 * response.stats.generation_time / NEW_TOKENS, 2),
        "total_s": round(time.perf_counter() - begin, 4),
    }
    return result, response
