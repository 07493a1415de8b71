"""What write-on-accept costs: a verify window that records and folds over one written at once.

Rows decode windows of one pending token and ``--drafts`` drafts, all accepted, so that every round
folds as much as it can; beside it the same tokens run as a certain window, whose state is written
at once and folds nothing. Interleaved pairs of rounds on the same model; the ratio is of times.

    python -m benchmarks.rollback --shape demo --rows 8 --drafts 3
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import mlx.core as mx

from engine import blas
from engine.build import build_parts
from engine.executor import Executor, Wanted
from engine.options import EngineOptions
from scheduler.round import Round, Row

from .pairs import measure_pairs
from .shapes import as_loaded, build_model

CONTEXT = 256


class Sayings:
    """Picks exactly what was drafted, so that every draft is accepted."""

    def __init__(self, drafts: int) -> None:
        self.drafts = tuple(range(11, 11 + drafts))

    def propose(self, rows: Sequence[Row]) -> Mapping[int, tuple[int, ...]]:
        """The same drafts for every row."""
        return {row.seq_id: self.drafts for row in rows}

    def pick(self, wanted: Sequence[Wanted], logits: mx.array) -> list[int]:
        """What was drafted, then anything."""
        mx.eval(mx.argmax(logits, axis=-1))
        return [(*self.drafts, 7)[want.num_ahead] for want in wanted]


class Rounds:
    """Rounds of one executor, driven by hand."""

    def __init__(self, executor: Executor, rows: int, sayings: Sayings, block_size: int) -> None:
        self.executor, self.sayings, self.num_rows = executor, sayings, rows
        blocks = -(-(CONTEXT + 64) // block_size)
        self.tables = [tuple(range(1 + n * blocks, 1 + (n + 1) * blocks)) for n in range(rows)]

    def seconds(self, *, certain: bool) -> float:
        """Time one round: all tokens certain, or one certain and the others drafted and folded."""
        count = len(self.sayings.drafts)
        tokens = (5, *self.sayings.drafts) if certain else (5,)
        rows = tuple(
            Row(
                number,
                tokens,
                CONTEXT,
                table,
                slot=number + 1,
                fold=0 if certain else count,
                num_drafts=0 if certain else count,
            )
            for number, table in enumerate(self.tables)
        )
        begin = time.perf_counter()
        self.executor.run(Round(rows), self.sayings.pick, lambda *_: mx.array([]))
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="demo")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=31)
    arguments = parser.parse_args()
    dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.bfloat16
    loaded = as_loaded(build_model(arguments.shape, dtype), arguments.shape)
    options = EngineOptions(
        max_rows=arguments.rows, max_context=1024, speculate=arguments.drafts, drafter="lookup"
    )
    parts = build_parts(loaded, options)
    sayings = Sayings(arguments.drafts)
    executor = parts.executor
    assert executor.drafter is not None
    executor.drafter.propose = lambda rows, _choose: sayings.propose(rows)  # type: ignore[method-assign]
    rounds = Rounds(executor, arguments.rows, sayings, options.block_size)
    ratio = measure_pairs(
        lambda: rounds.seconds(certain=False), lambda: rounds.seconds(certain=True), arguments.pairs
    )
    line = {"benchmark": "rollback", "shape": arguments.shape, "rows": arguments.rows}
    line |= {"drafts": arguments.drafts, "device": str(mx.default_device())}
    line |= {"backend": parts.backend.name, "blas": str(blas.current()).split(" from ")[0]}
    print(json.dumps({**line, **asdict(ratio)}))


if __name__ == "__main__":
    main()
