"""Products of few rows with large weights, as OpenBLAS is asked for them: six ways in turns.

    OCTAVO_BLAS_THREADS=2 python -m benchmarks.products

``x @ W.T`` and ``W @ x.T`` run on as many threads as the BLAS has; tiles and panels run on one lane
(a CPU stream of MLX) or on that many. Each time is that of one product in a sequence over several
weights that together are larger than any cache, each product waiting for the one before. One JSON
line a shape and number of rows: milliseconds, the best and the median of the turns.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

from engine import blas  # loads the BLAS, then mlx
from engine.cpu.lanes import Lanes
from engine.cpu.skinny_weight import SkinnyWeight

from .turns import all_threads

import mlx.core as mx  # isort: skip

SHAPES = ((3072, 1024), (1024, 3584), (6144, 1024), (768, 256))  # outputs, inputs
ROWS = (1, 4, 8, 16, 32)
WEIGHTS_BYTES = 150_000_000
SETTLE_S = 0.1  # OpenBLAS's threads spin for a while after a product, on the next way's cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    used = blas.current()
    threads = (used.threads or 1) if used is not None else 1
    lanes = {1: Lanes.make(1), threads: Lanes.make(threads)}
    blas.set_threads(1)  # with more, OpenBLAS lets one stream in at a time
    print(json.dumps({"benchmark": "products", "blas": str(used).split(" from ")[0]}), flush=True)
    for outputs, inputs in SHAPES:
        count = max(4, WEIGHTS_BYTES // (4 * outputs * inputs))
        weights = [mx.random.normal((outputs, inputs)) for _ in range(count)]
        mx.eval(weights)
        tiled = {
            f"{name}, {number} lanes": [
                SkinnyWeight(w, lanes[number], tiles=True, panels=name == "panels") for w in weights
            ]
            for name in ("tiles", "panels")
            for number in lanes
        }
        for rows in ROWS:
            x = mx.random.normal((rows, inputs))
            mx.eval(x)
            ways: dict[str, list[Callable[[mx.array], mx.array]]] = {
                f"x @ W.T, {threads} threads": [lambda x, w=w: x @ w.T for w in weights],
                f"W @ x.T, {threads} threads": [lambda x, w=w: (w @ x.T).T for w in weights],
                **{way: [w.product for w in skinny] for way, skinny in tiled.items()},
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, products in ways.items():
                    time.sleep(SETTLE_S)
                    with nullcontext() if way in tiled else all_threads():
                        begin = time.perf_counter()
                        for product in products:
                            mx.eval(product(x))
                        times[way].append(1e3 * (time.perf_counter() - begin) / count)
            found = {way: [round(min(t), 3), round(median(t), 3)] for way, t in times.items()}
            line = {"outputs": outputs, "inputs": inputs, "rows": rows, "ms": found}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
