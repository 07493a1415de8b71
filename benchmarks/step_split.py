"""Where a decode round's time goes: milliseconds of each phase, and the share beside the device.

So many rows decode together, their prompts are over. ``build`` is the arrays and the graph of
operations. The demo model's layers run while the next are built (on a CPU): what the host then
waits for is the device's. One line a run.

    python -m benchmarks.step_split --shape dense-0.6b --rows 8
"""

import argparse
import json
import time
from dataclasses import asdict
from statistics import median
from typing import Any

from engine import Engine, SamplingParams, blas

from .peers import made_up_prompts

ROUNDS_BEFORE = 1  # of decoding: the first brings the rows together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="dense-0.6b", help="demo, dense-0.6b or hybrid-0.8b")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=16, help="of each row")
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of each row")
    parser.add_argument("--runs", type=int, default=3, help="after one that is not counted")
    arguments = parser.parse_args()
    engine = load(arguments.shape, arguments.rows)
    used = str(blas.current()).split(" from ")[0]
    for number in range(arguments.runs + 1):
        line = split(engine, arguments.rows, arguments.prompt_tokens, arguments.tokens)
        if number:
            base = {"benchmark": "step_split", "shape": arguments.shape, "rows": arguments.rows}
            print(json.dumps({**base, **line, "blas": used}), flush=True)


def load(shape: str, rows: int) -> Engine:
    """Return an engine of ``shape``, its weights float32 and random but for the demo model's."""
    import mlx.core as mx

    from engine.build import build_parts
    from engine.options import EngineOptions

    from .shapes import as_loaded, build_model

    loaded = as_loaded(build_model(shape, mx.float32), shape)
    return Engine(build_parts(loaded, EngineOptions(max_rows=rows, max_context=512)))


def split(engine: Engine, rows: int, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """Decode ``rows`` rows; return what a round took, in milliseconds, and of what."""
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True, temperature=0.0)
    waiting = {engine.submit(p, params) for p in made_up_prompts(rows, prompt_tokens)}
    while waiting:
        waiting -= {delta.request_id for delta in engine.step() if delta.token_ids}
    for _ in range(ROUNDS_BEFORE):
        engine.step()
    before, rounds = _phases(engine), []
    while engine.has_work:
        begin = time.perf_counter()
        engine.step()
        rounds.append(1e3 * (time.perf_counter() - begin))
    after = _phases(engine)
    phases = {name: 1e3 * (after[name] - before[name]) / len(rounds) for name in after}
    mean = sum(rounds) / len(rounds)
    return {
        "rounds": len(rounds),
        "ms": round(mean, 2),
        "median_ms": round(median(rounds), 2),
        "phases_ms": {name: round(spent, 3) for name, spent in phases.items()},
        "not_the_device": round(1 - phases["device"] / mean, 4),
    }


def _phases(engine: Engine) -> dict[str, float]:
    seconds = asdict(engine.stats().phases)
    return {name.removesuffix("_seconds"): value for name, value in seconds.items()}


if __name__ == "__main__":
    main()
