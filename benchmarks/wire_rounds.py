"""What telling of a round's tokens costs a model's engine: rounds told and kept, in turns.

The loss that ``benchmarks.wire --model`` shows is the difference of two processes, seconds apart,
on a machine whose speed changes by more than that. Here one worker's engine runs all the time. In
every other block of rounds it keeps to itself what they gain, and lets go of it afterwards: nobody
is woken, neither the socket's thread, which shares its interpreter, nor broker and client, which
share the cores. Compared are the times from one round's beginning to the next one's, block by block
with the next one.

``--linger`` is what the client allows tokens to wait; 0 is one that reads every round.

    python -m benchmarks.wire_rounds [--model demo] [--blocks 80] [--linger 0]
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipc.client import Client
from ipc.engine_loader import engine_loader
from ipc.limits import ANSWER_LINGER
from ipc.served_engine import DeltaLike, LoadedEngine
from ipc.worker import Worker

from .pairs import ratio_of
from .wire import service

BLOCK = 40  # rounds
SETTLING = 3  # of them at a block's beginning are not counted: what was kept is told then
PAUSE = 0.02  # seconds before a block, in which that is over
TOKENS = 200  # of an answer


class Block(NamedTuple):
    """A block of rounds: whether they were told, and how many seconds each took."""

    told: bool
    seconds: float


class KeepingEngine:
    """An engine that tells of its gains in every other block of rounds."""

    def __init__(self, engine: Any, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._kept: list[DeltaLike] = []
        self._began: list[float] = []  # the rounds of this block
        self._tells = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Sequence[DeltaLike]:
        """Run a round; return what it gained, or nothing."""
        if len(self._began) > BLOCK:
            self._next_block()
        self._began.append(time.monotonic())
        gained = self._engine.step()
        if any(delta.finish_reason is not None for delta in gained):
            self._began.clear()  # others come in its place: no block like the others
        elif not self._tells:
            self._kept += gained
            return ()
        kept, self._kept = self._kept, []
        return [*kept, *gained]

    def _next_block(self) -> None:
        counted = self._began[SETTLING:]
        seconds = (counted[-1] - counted[0]) / (len(counted) - 1)
        with self._path.open("a") as file:
            print(json.dumps(Block(self._tells, seconds)), file=file)
        self._tells = not self._tells
        self._began.clear()
        time.sleep(PAUSE)


def measure(model: str, *, max_rows: int, num_blocks: int, linger: float) -> list[Block]:
    """Return the blocks of a worker that serves one client."""
    rounds = num_blocks * (BLOCK + 1) * 1.3  # some blocks are cut short
    num_prompts = max_rows * (int(rounds / TOKENS) + 1)
    prompts = [f"Chapter {number}. It was the" for number in range(num_prompts)]
    params = {"max_tokens": TOKENS, "ignore_eos": True, "seed": 1, "temperature": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocks"
        words = ("-m", "benchmarks.wire_rounds", "--serve", "ADDRESS", str(path))
        words += ("--model", model, "--max-rows", str(max_rows))
        with service(words) as served, Client(served.address) as client:
            client.gather(prompts, params, linger=linger, window=4 * TOKENS)
        return [Block(*json.loads(line)) for line in path.read_text().splitlines()]


def serve(address: str, path: Path, model: str, max_rows: int) -> None:
    """Be the worker."""
    load_engine = engine_loader(model, {"max_rows": max_rows})

    def load() -> LoadedEngine:
        loaded = load_engine()
        engine = KeepingEngine(loaded.engine, path)
        return LoadedEngine(engine, loaded.make_params, loaded.models, loaded.rows, loaded.capacity)

    Worker(address, load).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--linger", type=float, default=ANSWER_LINGER, help="seconds")
    parser.add_argument("--serve", nargs=2, metavar=("ADDRESS", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        address, path = arguments.serve
        serve(address, Path(path), arguments.model, arguments.max_rows)
        sys.exit()
    blocks = measure(
        arguments.model,
        max_rows=arguments.max_rows,
        num_blocks=arguments.blocks,
        linger=arguments.linger,
    )
    pairs = [
        (one.seconds, two.seconds) if one.told else (two.seconds, one.seconds)
        for one, two in itertools.pairwise(blocks)
        if one.told != two.told
    ]
    cost = ratio_of(pairs)
    figures = {
        "model": arguments.model,
        "rows": arguments.max_rows,
        "linger": arguments.linger,
        "pairs": cost.num_pairs,
        "told_ms": round(1000 * cost.ours, 3),
        "kept_ms": round(1000 * cost.theirs, 3),
        "longer_percent": round(100 * (cost.ratio - 1), 1),
        "interval": [round(100 * (each - 1), 1) for each in (cost.low, cost.high)],
    }
    print(json.dumps({"benchmark": "wire_rounds", **figures}), flush=True)


if __name__ == "__main__":
    main()
