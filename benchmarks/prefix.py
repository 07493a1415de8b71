"""What a shared prefix saves: prompt tokens computed, blocks held, time to first token, step time.

Users 1, 4, 16, 64 with one prefix and a few words of their own, with the prefix cache on and off,
and mlx-lm's batch generation beside. Also what the cache costs where nothing is shared.

    python -m benchmarks.prefix --users 1 4 16 --prefix 256 1024
"""

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from engine import Engine, SamplingParams, blas

from .pairs import measure_pairs
from .shapes import build_model
from .throughput import NoText

OWN_WORDS = 12
NEW_TOKENS = 16


def make_prompts(users: int, prefix: int) -> list[list[int]]:
    """Prompts of made-up ids: ``prefix`` that all share, then each user's own."""
    shared = [(31 * place + 5) % 8000 + 1 for place in range(prefix)]
    return [
        shared + [(17 * place + 101 * user + 3) % 8000 + 1 for place in range(OWN_WORDS)]
        for user in range(users)
    ]


def run_users(engine: Engine, prompts: list[list[int]]) -> dict[str, float]:
    """One user first, then all the others at once; what the others cost."""
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, temperature=0.0)
    list(engine.generate(prompts[:1], params))
    before = engine.stats().scheduler
    begin = time.perf_counter()
    ids = {engine.submit(prompt, params): None for prompt in prompts}
    first: dict[str, float] = {}
    cached, most_held, steps = 0, 0, []
    while engine.has_work:
        step_begin = time.perf_counter()
        deltas = engine.step()
        now = time.perf_counter()
        stats = engine.stats().scheduler
        held = stats.total_blocks - stats.free_blocks - stats.cached_blocks
        most_held = max(most_held, held)
        if len(first) == len(ids):
            steps.append(now - step_begin)
        for delta in deltas:
            first.setdefault(delta.request_id, now - begin)
            if delta.usage is not None:
                cached += delta.usage.cached_tokens
    waits = sorted(first.values())
    steps.sort()
    return {
        "prompt_tokens_computed": engine.stats().scheduler.prompt_tokens - before.prompt_tokens,
        "cached_tokens": cached,
        "most_blocks_held": most_held,
        "first_token_median_s": waits[len(waits) // 2],
        "first_token_last_s": waits[-1],
        "step_median_ms": 1e3 * steps[len(steps) // 2] if steps else 0.0,
        "total_s": time.perf_counter() - begin,
    }


def run_mlx_lm(model: Any, prompts: list[list[int]]) -> float:
    """Seconds that mlx-lm's batch_generate takes for the same prompts."""
    from mlx_lm.generate import batch_generate

    begin = time.perf_counter()
    batch_generate(model, NoText(), prompts, max_tokens=NEW_TOKENS)
    return time.perf_counter() - begin


def cold_cost(pairs: int) -> dict[str, Any]:
    """Throughput with the cache on over off, where no two prompts share anything."""
    params = SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.0)
    engines = {
        on: Engine.load("demo", max_rows=8, max_context=512, prefix_cache=on)
        for on in (True, False)
    }
    salt = iter(range(1, 1 << 30))

    def rate(on: bool) -> float:
        start = next(salt)
        prompts = [
            [(7919 * start + 104729 * user + 31 * place) % 8000 + 1 for place in range(100)]
            for user in range(8)
        ]
        begin = time.perf_counter()
        answers = list(engines[on].generate(prompts, params))
        return sum(len(a.token_ids) for a in answers) / (time.perf_counter() - begin)

    return asdict(measure_pairs(lambda: rate(True), lambda: rate(False), pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prefix", type=int, nargs="+", default=[256, 1024, 4000])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--no-mlx-lm", action="store_true")
    arguments = parser.parse_args()
    import mlx.core as mx

    used = str(blas.current()).split(" from ")[0]
    peer = None if arguments.no_mlx_lm else build_model("demo", mx.float32)
    line: dict[str, Any] = {"benchmark": "prefix", "blas": used}
    print(json.dumps({**line, "line": "cold, on over off", **cold_cost(arguments.pairs)}))
    for prefix in arguments.prefix:
        for users in arguments.users:
            prompts = make_prompts(users, prefix)
            result: dict[str, Any] = {**line, "users": users, "prefix": prefix}
            for on in (True, False):
                engine = Engine.load("demo", max_rows=users, prefix_cache=on)
                result["on" if on else "off"] = run_users(engine, prompts)
            if peer is not None:
                result["mlx_lm_total_s"] = run_mlx_lm(peer, prompts)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
