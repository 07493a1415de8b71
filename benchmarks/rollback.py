"""What write-on-accept costs, and how much dearer a verify window is than a single token.

Rows decode windows of one pending token and ``--drafts`` drafts, all accepted, so that every round
folds as much as it can. Beside it, in turn, on the same model:

    rollback   the same tokens as a certain window, whose state is written at once and of which as
               many logits are computed: ratio of times
    window     a single token; ``--dense FOLDER`` does the same with a dense model of that size, and
               the ratio is that of the two models' ratios: 1 where drafts cost both the same

    python -m benchmarks.rollback --shape demo --rows 8 --drafts 3 --dense ../shared/models/dense
    python -m benchmarks.rollback --shape hybrid-0.8b --rows 8 --drafts 3 --dense-shape dense-0.6b
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Literal

import mlx.core as mx

from engine import blas
from engine.build import build_parts
from engine.drafting.drafter import Choose
from engine.executor import Executor
from engine.loading import LoadedModel, load
from engine.options import EngineOptions
from engine.voice import Wanted
from scheduler.round import Round, Row

from .pairs import measure_pairs, ratio_of
from .shapes import SHAPES, as_loaded, build_model

CONTEXT = 256

Kind = Literal["verify", "certain", "single"]


class Sayings:
    """Picks exactly what was drafted, so that every draft is accepted."""

    def __init__(self, drafts: int) -> None:
        self.drafts = tuple(range(11, 11 + drafts))

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """The same drafts for every row."""
        return {row.seq_id: self.drafts for row in rows}

    def pick(self, wanted: Sequence[Wanted], logits: mx.array) -> list[int]:
        """What was drafted, then anything."""
        mx.eval(mx.argmax(logits, axis=-1))
        return [(*self.drafts, 7)[want.num_ahead] for want in wanted]


class Rounds:
    """Rounds of one executor, driven by hand."""

    def __init__(self, loaded: LoadedModel, rows: int, drafts: int) -> None:
        options = EngineOptions(max_rows=rows, max_context=1024, speculate=drafts, drafter="lookup")
        self.parts = build_parts(loaded, options)
        self.executor: Executor = self.parts.executor
        self.sayings = Sayings(drafts)
        assert self.executor.drafter is not None
        self.executor.drafter.propose = self.sayings.propose  # type: ignore[method-assign]
        blocks = -(-(CONTEXT + 64) // options.block_size)
        self.tables = [tuple(range(1 + n * blocks, 1 + (n + 1) * blocks)) for n in range(rows)]
        self.has_slots = self.parts.bytes_per_slot > 0
        self._shown: list[mx.array] = []  # hidden states whose logits no certain window needs

    def seconds(self, kind: Kind) -> float:
        """Time a round of ``kind`` that follows another of its kind."""
        drafts = self.sayings.drafts
        num_drafts = len(drafts) if kind == "verify" else 0
        tokens = (5, *drafts) if kind == "certain" else (5,)
        self._run(tokens, num_drafts, fold=0)
        begin = time.perf_counter()
        self._run(tokens, num_drafts, fold=num_drafts)
        return time.perf_counter() - begin

    def _run(self, tokens: tuple[int, ...], num_drafts: int, fold: int) -> None:
        rows = tuple(
            Row(
                number,
                tokens,
                CONTEXT,
                table,
                slot=number + 1 if self.has_slots else None,
                fold=fold if self.has_slots else 0,
                num_drafts=num_drafts,
            )
            for number, table in enumerate(self.tables)
        )
        self._shown.clear()
        self.executor.run(Round(rows), self.sayings.pick, lambda *_: mx.array([]), self._show)
        if self._shown:
            logits = self.executor.forward.logits(mx.concatenate(self._shown))
            mx.eval(mx.argmax(logits, axis=-1))

    def _show(self, row: Row, hidden: mx.array, head: object) -> None:
        if hidden.shape[0] > 1:
            self._shown.append(hidden[:-1])


def compare_windows(hybrid: Rounds, dense: Rounds, num_pairs: int) -> dict[str, Any]:
    """Return a verify window over a single token: of both models, and the ratio of the two."""
    pairs = []
    for number in range(num_pairs + 1):
        models = (hybrid, dense) if number % 2 else (dense, hybrid)
        found = {id(m): m.seconds("verify") / m.seconds("single") for m in models}
        if number:  # the first warms up
            pairs.append((found[id(hybrid)], found[id(dense)]))
    ratio = asdict(ratio_of(pairs))
    hybrids, denses = zip(*pairs, strict=True)
    return {"hybrid": median(hybrids), "dense": median(denses), **ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="demo", choices=SHAPES)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--dense", default=None, help="folder of a dense model to compare with")
    parser.add_argument("--dense-shape", default=None, choices=SHAPES, help="or a shape")
    arguments = parser.parse_args()
    dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.bfloat16

    def rounds_of(loaded: LoadedModel) -> Rounds:
        return Rounds(loaded, arguments.rows, arguments.drafts)

    hybrid = rounds_of(as_loaded(build_model(arguments.shape, dtype), arguments.shape))
    line = {"shape": arguments.shape, "rows": arguments.rows, "drafts": arguments.drafts}
    line |= {"device": str(mx.default_device()), "backend": hybrid.parts.backend.name}
    line |= {"blas": str(blas.current()).split(" from ")[0]}
    ratio = measure_pairs(
        lambda: hybrid.seconds("verify"), lambda: hybrid.seconds("certain"), arguments.pairs
    )
    print(json.dumps({"benchmark": "rollback", **line, **asdict(ratio)}), flush=True)
    if arguments.dense is None and arguments.dense_shape is None:
        return
    if arguments.dense is not None:
        loaded = load(arguments.dense, dtype=str(dtype).removeprefix("mlx.core."))
    else:
        loaded = as_loaded(build_model(arguments.dense_shape, dtype), arguments.dense_shape)
    compared = compare_windows(hybrid, rounds_of(loaded), arguments.pairs)
    print(json.dumps({"benchmark": "window", **line, "against": loaded.name, **compared}))


if __name__ == "__main__":
    main()
