"""Attention of rows that share leading blocks: reading those once against reading them for each.

One attention layer of the embedded hybrid's shape, by rows, shared blocks, and width of the
windows; interleaved pairs, attentions a second. ``ratio`` above 1: reading once is faster. It says
where engine/batch.py's FEWEST_SPARED and WIDEST lie.

    python -m benchmarks.groups --rows 2 8 64 --blocks 4 16 64 256 --width 1 5
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict

from engine import blas

OWN_TOKENS = 20
SIZE = 16
HEADS, KV_HEADS, DIM = 4, 2, 64


def make_attention(rows: int, blocks: int, width: int, *, together: bool) -> Callable[[], float]:
    """Return what attends once and says how many times a second it could."""
    import mlx.core as mx

    from engine import batch as batches
    from engine.attention.index import BatchIndex
    from engine.attention.paged import PagedCache
    from engine.batch import Batch, Window
    from engine.pages import Pages, PageShape
    from scheduler.round import PrefixGroup, Row

    prefix, start = tuple(range(1, 1 + blocks)), blocks * SIZE + OWN_TOKENS
    own = -(-(start + width) // SIZE) - blocks
    windows = []
    for number in range(rows):
        first = 1 + blocks + number * own
        tables = (*prefix, *range(first, first + own))
        windows.append(Window(Row(number, (1,) * width, start - number % SIZE, tables)))
    groups = [PrefixGroup(tuple(range(rows)), blocks)] if together else []
    batches.FEWEST_SPARED, batches.WIDEST = 0, 1 << 30  # measure where it loses as well
    shape = PageShape(KV_HEADS, DIM, DIM, mx.float32)
    pages = Pages(shape, 1 + blocks + rows * own, SIZE)
    pages.keys, pages.values = (mx.random.normal(x.shape) for x in pages.arrays)
    queries = mx.random.normal((rows, HEADS, width, DIM))
    mx.eval(queries, pages.arrays)

    def attend() -> float:
        begin = time.perf_counter()
        cache = PagedCache(pages, BatchIndex(Batch(windows, SIZE, groups)), tiles=True)
        mx.eval(cache.attend(queries, DIM**-0.5, None))
        return 1 / (time.perf_counter() - begin)

    return attend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 4, 16, 64])
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--width", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    from .pairs import measure_pairs

    used = str(blas.current()).split(" from ")[0]
    for width in arguments.width:
        for rows in arguments.rows:
            for blocks in arguments.blocks:
                once = make_attention(rows, blocks, width, together=True)
                each = make_attention(rows, blocks, width, together=False)
                case = {"rows": rows, "shared_blocks": blocks, "width": width, "blas": used}
                result = asdict(measure_pairs(once, each, arguments.pairs))
                print(json.dumps({"benchmark": "groups", **case, **result}), flush=True)


if __name__ == "__main__":
    main()
