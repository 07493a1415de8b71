"""How long a decode step of 4B shapes takes on a GPU: both backends beside mlx-lm and the bound.

The engine is measured whole (scheduling, sampling and detokenization included) and its parts beside
it; the bound is the time to read the weights, the K/V and the states (these twice: they are written
back) at the bandwidth of a device copy. Weights are random: speed alone is measured.

    python -m benchmarks.gpu_step dense hybrid --seconds 300
    python -m benchmarks.gpu_step dense --sides shared fold --rows 8 64  # these cases alone

"shared": steps of rows that share a prefix, of which the cache holds it, over steps of as many that
have their own tokens alone, batch by batch in one engine: the host is faster or slower by 4 % from
one engine to the next. The bound is that of rows which share nothing. "fold": the body over windows
of drafts that are recorded, after as many that are folded in, over the same windows written at
once; in turns, by pairs. Before the first case: how long it takes to make an engine of a model that
lies in memory, and until its first answer, compilation of kernels included.
"""

import argparse
import dataclasses
import gc
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator

from engine import Engine, SamplingParams
from engine.batch import Batch, Window
from engine.build import build_parts
from engine.drafting.drafter import Drafter
from engine.drafting.plan import DrafterPlan
from engine.options import EngineOptions
from engine.view import BatchView
from scheduler.round import Row

from .decode_steps import (
    MOST_TOKENS,
    PAIRS,
    STEPS,
    WARM_UP,
    make_prompts,
    measure_engine,
    measure_shared,
)
from .pairs import measure_pairs
from .shapes import as_loaded, twin
from .shapes_4b import bound_ms, build_model

BLOCK = 16  # positions of a K/V block


class FixedDrafter(Drafter):
    """Drafts that nobody accepts, for windows of one length."""

    name = "fixed"

    def propose(self, rows: Sequence[Row], choose: Any) -> Mapping[int, tuple[int, ...]]:
        return {row.seq_id: (1,) * row.num_drafts for row in rows}

    def follow(self, view: Any, hidden: Any, kept: Any) -> None:
        pass

    def copy(self, blocks: Any, slots: Any) -> None:
        pass


def make_engine(
    kind: str,
    model: Any,
    backend: str,
    *,
    rows: int,
    context: int,
    prefix: int = 0,
    drafts: int = 0,
    max_checkpoint_bytes: int = 4 << 30,
) -> Engine:
    """Return an engine with room for ``rows`` prompts and answers after one shared ``prefix``."""
    loaded = dataclasses.replace(as_loaded(twin(model), f"{kind}-4b"), max_context=8192)
    own = prefix % BLOCK + context + MOST_TOKENS + (drafts + 1) * (WARM_UP + STEPS)
    needed = prefix // BLOCK + rows * -(-own // BLOCK)
    options = EngineOptions(
        max_rows=rows,
        num_blocks=needed + needed // 4 + 8,
        block_size=BLOCK,
        max_context=prefix + context + 512,
        max_checkpoint_bytes=max_checkpoint_bytes,
        backend=backend,  # type: ignore[arg-type]
        speculate=drafts or "off",
    )
    if not drafts:
        return Engine(build_parts(loaded, options))
    plan = DrafterPlan("fixed", 0, 0, lambda _blocks, _slots: FixedDrafter())
    return Engine(build_parts(loaded, options, lambda *_: plan))


def measure_mlx_lm(model: Any, rows: int, context: int) -> dict[str, float]:
    """mlx-lm's BatchGenerator over the same prompts."""
    generator = BatchGenerator(model, max_tokens=MOST_TOKENS, completion_batch_size=rows)
    started = time.perf_counter()
    generator.insert(make_prompts(rows, context))
    while len(generator.next_generated()) < rows:
        pass
    prefill = time.perf_counter() - started
    for _ in range(WARM_UP):
        generator.next_generated()
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        generator.next_generated()
        times.append(time.perf_counter() - started)
    generator.close()
    return {
        "step_ms": float(np.median(times)) * 1e3,
        "prefill_tokens_per_s": rows * context / prefill,
    }


class Windows:
    """Windows of one engine's body, launched by hand: drafts recorded, or all tokens certain."""

    def __init__(self, engine: Engine, rows: int, context: int, drafts: int) -> None:
        self.executor = engine.parts.executor
        size = engine.parts.options.block_size
        blocks = -(-(context + drafts + 1) // size)
        self.tables = [tuple(range(1 + n * blocks, 1 + (n + 1) * blocks)) for n in range(rows)]
        self.drafts = tuple(range(11, 11 + drafts))
        self.context = context
        self.block_size = size

    def launch(self, *, records: bool, fold: int) -> None:
        """Run one window of each row after ``fold`` drafts of the last; do not wait for it."""
        certain = (5,) if records else (5, *self.drafts)
        windows = [
            Window(
                Row(number, certain, self.context, table, slot=number + 1, fold=fold),
                self.drafts if records else (),
            )
            for number, table in enumerate(self.tables)
        ]
        batch = Batch(windows, self.block_size, keep_order=True)
        caches = self.executor.store.open(BatchView(batch))
        mx.async_eval(self.executor.forward.hidden(batch.tokens(), caches))  # type: ignore[no-untyped-call]

    def seconds(self, *, records: bool) -> float:
        """Time a window of many that follow each other."""
        fold = len(self.drafts) if records else 0
        for _ in range(WARM_UP):
            self.launch(records=records, fold=fold)
        mx.synchronize()
        started = time.perf_counter()
        for _ in range(STEPS):
            self.launch(records=records, fold=fold)
        mx.synchronize()
        return (time.perf_counter() - started) / STEPS


def measure_fold(engine: Engine, rows: int, context: int, drafts: int) -> dict[str, float]:
    """A window whose drafts are recorded and folded in over the same window written at once."""
    windows = Windows(engine, rows, context, drafts)
    ratio = measure_pairs(
        lambda: windows.seconds(records=True), lambda: windows.seconds(records=False), PAIRS
    )
    return {
        "step_ms": ratio.ours * 1e3,
        "at_once_ms": ratio.theirs * 1e3,
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
    }


def report_start(kind: str, model: Any) -> None:
    """Make an engine and let it answer, in a process that has compiled nothing yet."""
    started = time.perf_counter()
    engine = make_engine(kind, model, "cuda", rows=8, context=256)
    made = time.perf_counter() - started
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)
    for _ in engine.generate(make_prompts(8, 256), params):
        pass
    answered = time.perf_counter() - started
    line = {
        "benchmark": "gpu_start",
        "shape": f"{kind}-4b",
        "made_s": round(made, 2),
        "first_answers_s": round(answered, 2),
    }
    print(json.dumps(line), flush=True)


class Case(NamedTuple):
    """One measurement; ``context`` tokens of each row follow ``prefix`` that all share.

    ``side``: ours ("cuda"), theirs, what recording and folding drafts costs ("fold"), or what a
    shared prefix does ("shared").
    """

    side: str
    rows: int
    context: int
    drafts: int = 0
    prefix: int = 0


CASES = [  # what matters most first
    *(Case("cuda", rows, 256) for rows in (8, 1, 64, 32)),
    Case("shared", 64, 256, prefix=4096),
    *(Case("cuda", rows, 256, drafts=3) for rows in (8, 1)),
    Case("fold", 8, 256, drafts=3),
    *(Case("cuda", rows, 4096) for rows in (8, 64)),
    *(Case("cuda", rows, 256, drafts=drafts) for rows in (8, 1) for drafts in (1, 7)),
    *(Case("cuda", 32, 256, drafts=drafts) for drafts in (1, 3)),
    *(Case("mlx-lm", rows, 256) for rows in (8, 1, 64, 32)),
]


def report(kind: str, model: Any, case: Case) -> None:
    side, rows, context, drafts, prefix = case
    if side == "mlx-lm":
        figures = measure_mlx_lm(twin(model), rows, context)
    else:
        engine = make_engine(
            kind, model, "cuda", rows=rows, context=context, prefix=prefix, drafts=drafts
        )
        if side == "fold":
            figures = measure_fold(engine, rows, context, drafts)
        elif side == "shared":
            figures = measure_shared(engine, rows, context, prefix)
        else:
            figures = measure_engine(engine, make_prompts(rows, context, prefix))
    bound = bound_ms(kind, model, rows, prefix + context, drafts + 1)
    line = {
        "benchmark": "gpu_step",
        "shape": f"{kind}-4b",
        "side": side,
        "rows": rows,
        "context": context,
        "prefix": prefix,
        "window": drafts + 1,
        **{name: round(value, 4) for name, value in figures.items()},
        "bound_ms": round(bound, 3),
        "of_bound": round(bound / figures["step_ms"], 3),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=("dense", "hybrid"))
    parser.add_argument("--seconds", type=float, default=600, help="start nothing after so long")
    sides = sorted({case.side for case in CASES})
    rows = sorted({case.rows for case in CASES})
    parser.add_argument("--sides", nargs="+", default=sides, choices=sides, help="only these cases")
    parser.add_argument("--rows", nargs="+", default=rows, choices=rows, type=int, help="likewise")
    arguments = parser.parse_args()
    cases = [case for case in CASES if case.side in arguments.sides and case.rows in arguments.rows]
    if not cases:
        parser.error("no case has both one of these sides and one of these numbers of rows")
    started = time.perf_counter()
    for number, kind in enumerate(arguments.kinds, 1):
        model = build_model(kind)
        report_start(kind, model)
        for case in cases:
            if time.perf_counter() - started > arguments.seconds * number / len(arguments.kinds):
                break
            try:
                report(kind, model, case)
            except (ValueError, RuntimeError) as error:
                print(json.dumps({"shape": kind, "case": case, "error": str(error)[:300]}))
            gc.collect()
            mx.clear_cache()
        del model
        gc.collect()
        mx.clear_cache()


if __name__ == "__main__":
    main()
