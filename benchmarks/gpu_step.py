"""How long a decode step of 4B shapes takes on a GPU: both backends beside mlx-lm and the bound.

The engine is measured whole (scheduling, sampling and detokenization included) and its parts beside
it; the bound is the time to read the weights, the K/V and the states (these twice: they are written
back) at the bandwidth of a device copy. Weights are random: speed alone is measured.

    python -m benchmarks.gpu_step dense hybrid --seconds 300
    python -m benchmarks.gpu_step dense --sides shared

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
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import qwen3, qwen3_5

from engine import Engine, SamplingParams
from engine.batch import Batch, Window
from engine.build import build_parts
from engine.drafting.drafter import Drafter
from engine.drafting.plan import DrafterPlan
from engine.options import EngineOptions
from engine.view import BatchView
from scheduler.round import Row

from .pairs import measure_pairs
from .shapes import DENSE_06B, HYBRID_08B, as_loaded, twin

DENSE_4B = DENSE_06B | {  # Qwen3-4B
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
}
HYBRID_4B = HYBRID_08B | {  # Qwen3.5-4B
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "intermediate_size": 9216,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
    "vocab_size": 151936,
}
BYTES_PER_SECOND = 4.3e12
STEPS = 24
WARM_UP = 6
PAIRS = 9
MOST_TOKENS = 400  # of a request: the first ones decode while the last ones are read


class FixedDrafter(Drafter):
    """Drafts that nobody accepts, for windows of one length."""

    name = "fixed"

    def propose(self, rows: Sequence[Row], choose: Any) -> Mapping[int, tuple[int, ...]]:
        return {row.seq_id: (1,) * row.num_drafts for row in rows}

    def follow(self, view: Any, hidden: Any, kept: Any) -> None:
        pass

    def copy(self, blocks: Any, slots: Any) -> None:
        pass


def build_model(kind: str) -> Any:
    """Return a model of random bfloat16 weights, the same each time, made where they stay."""
    mx.random.seed(0)
    if kind == "dense":
        model: Any = qwen3.Model(qwen3.ModelArgs.from_dict(DENSE_4B))
    else:
        config = {"model_type": "qwen3_5", "text_config": HYBRID_4B}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))

    def fill(path: str, old: mx.array) -> mx.array:
        if path.endswith("A_log"):
            return mx.zeros(old.shape)
        if old.ndim == 1:
            return mx.ones(old.shape, mx.bfloat16)
        return mx.random.normal(old.shape, mx.bfloat16) * 0.02

    model.update(tree_map_with_path(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


def bound_ms(kind: str, model: Any, rows: int, context: int, width: int) -> float:
    """Milliseconds to move what a step has to."""
    moved = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    config = DENSE_4B if kind == "dense" else HYBRID_4B
    layers = config["num_hidden_layers"]
    paged = layers if kind == "dense" else layers // config["full_attention_interval"]
    per_position = 2 * config["num_key_value_heads"] * config["head_dim"] * 2
    moved += paged * rows * (context + width) * per_position
    if kind == "hybrid":
        state = config["linear_num_value_heads"] * 128 * 128 * 4
        moved += 2 * (layers - paged) * rows * state
    return moved / BYTES_PER_SECOND * 1e3


def make_prompts(rows: int, context: int) -> list[list[int]]:
    """Prompts of ``context`` tokens each."""
    prompts: list[list[int]] = (
        np.random.default_rng(context).integers(10, 8000, (rows, context)).tolist()
    )
    return prompts


def make_engine(
    kind: str, model: Any, backend: str, *, rows: int, context: int, drafts: int, prefix: int = 0
) -> Engine:
    """Make one for ``rows`` of ``context`` tokens, and what they say, after a shared prefix."""
    loaded = dataclasses.replace(as_loaded(twin(model), f"{kind}-4b"), max_context=8192)
    needed = rows * (-(-(context + MOST_TOKENS + (drafts + 1) * (WARM_UP + STEPS)) // 16))
    needed += -(-prefix // 16)
    options = EngineOptions(
        max_rows=rows,
        num_blocks=needed + needed // 4 + 8,
        max_context=prefix + context + 512,
        max_checkpoint_bytes=4 << 30,
        backend=backend,  # type: ignore[arg-type]
        speculate=drafts or "off",
    )
    if not drafts:
        return Engine(build_parts(loaded, options))
    plan = DrafterPlan("fixed", 0, 0, lambda _blocks, _slots: FixedDrafter())
    return Engine(build_parts(loaded, options, lambda *_: plan))


def measure_engine(engine: Engine, prompts: Sequence[list[int]]) -> dict[str, float]:
    """Prefill and then decode ``prompts``; milliseconds of a step and where they go."""
    params = SamplingParams(max_tokens=MOST_TOKENS, ignore_eos=True, temperature=0.0)
    started = time.perf_counter()
    waiting = {engine.submit(prompt, params) for prompt in prompts}
    while waiting:
        waiting -= {delta.request_id for delta in engine.step() if delta.token_ids}
    prefill = time.perf_counter() - started
    for _ in range(WARM_UP):
        engine.step()
    before = engine.stats().phases
    times = []
    begun = time.perf_counter()
    for _ in range(STEPS):
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
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
        "prefill_tokens_per_s": sum(map(len, prompts)) / prefill,
    }


class SharedPrefix:
    """Batches of rows with and without a prefix that all share, in one engine."""

    def __init__(self, engine: Engine, rows: int, context: int, prefix: int) -> None:
        self.engine, self.rows, self.context = engine, rows, context
        self._random = np.random.default_rng(prefix)
        self._prefix = self._tokens(prefix)
        self.params = SamplingParams(
            max_tokens=WARM_UP + 2 * STEPS, ignore_eos=True, temperature=0.0
        )

    def _tokens(self, count: int) -> list[int]:
        found: list[int] = self._random.integers(10, 8000, count).tolist()
        return found

    def seconds(self, *, shares: bool) -> float:
        """Time a step of a batch, once all of its rows decode; it leaves nothing but its cache."""
        shared = self._prefix if shares else []
        prompts = [shared + self._tokens(self.context) for _ in range(self.rows)]
        ids = [self.engine.submit(prompt, self.params) for prompt in prompts]
        silent = set(ids)
        while silent:
            silent -= {delta.request_id for delta in self.engine.step() if delta.token_ids}
        for _ in range(WARM_UP):
            self.engine.step()
        times = []
        for _ in range(STEPS):
            started = time.perf_counter()
            said = self.engine.step()
            times.append(time.perf_counter() - started)
            assert len(said) == self.rows, "all rows decode"
        for request_id in ids:
            self.engine.cancel(request_id)
        while self.engine.has_work:
            self.engine.step()
        return float(np.median(times))


def measure_shared(engine: Engine, rows: int, context: int, prefix: int) -> dict[str, float]:
    """Steps of rows with a shared prefix over those of rows without, by pairs of batches."""
    batches = SharedPrefix(engine, rows, context, prefix)
    ratio = measure_pairs(
        lambda: batches.seconds(shares=True), lambda: batches.seconds(shares=False), PAIRS
    )
    return {
        "step_ms": ratio.ours * 1e3,
        "alone_ms": ratio.theirs * 1e3,
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
    }


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
    engine = make_engine(kind, model, "cuda", rows=8, context=256, drafts=0)
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
    whole = context + prefix
    if side == "mlx-lm":
        figures = measure_mlx_lm(twin(model), rows, context)
    else:
        engine = make_engine(
            kind, model, "cuda", rows=rows, context=context, drafts=drafts, prefix=prefix
        )
        if side == "fold":
            figures = measure_fold(engine, rows, context, drafts)
        elif side == "shared":
            figures = measure_shared(engine, rows, context, prefix)
        else:
            figures = measure_engine(engine, make_prompts(rows, context))
    bound = bound_ms(kind, model, rows, whole, drafts + 1)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=("dense", "hybrid"))
    parser.add_argument("--sides", nargs="+", choices=sorted({one.side for one in CASES}))
    parser.add_argument("--seconds", type=float, default=600, help="start nothing after so long")
    arguments = parser.parse_args()
    started = time.perf_counter()
    for number, kind in enumerate(arguments.kinds, 1):
        model = build_model(kind)
        report_start(kind, model)
        for case in CASES:
            if arguments.sides and case.side not in arguments.sides:
                continue
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
