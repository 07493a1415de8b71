"""This engine beside mlx-lm and llama.cpp: decoding and whole runs, at several numbers of rows.

Same weights (float32), prompts and lengths, greedy; every side in a process of its own, all in
turns in one run. A ratio is ours over theirs: the median over rounds with its 95 % interval. Where
a peer is faster its lines come first and say so in their first field. Each line is one peer and
one phase: ``decode`` counts from the moment every row has its first token, ``whole`` everything,
``cpu`` the whole run in processor time: with ``--threads 1`` it means something on a busy machine.

    python -m benchmarks.peers --shape dense-0.6b --llama-python /tmp/llama/venv/bin/python

``--alone`` is one user with drafts, where mlx-lm has ``speculative_generate_step``; the dense model
there is a folder with demo's tokenizer:

    OCTAVO_DENSE_MODEL=FOLDER python -m benchmarks.peers --shape dense-demo --alone ...

``--keep FOLDER`` writes down what was measured and counts what earlier calls with the same numbers
found there, so that many rounds can be had a few at a time.

llama.cpp is built from the source package of llama-cpp-python, for this processor; ``gguf`` writes
its model file:

    python3 -m venv /tmp/llama/venv
    export CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"
    /tmp/llama/venv/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from engine.demo import __file__ as demo_file

from .comparison import Answer, report

HERE = Path(__file__).parent
PROMPTS = Path(demo_file).parent / "prompts.jsonl"
DENSE_MODEL = "OCTAVO_DENSE_MODEL"
SHAPES = ("demo", "dense-demo", "dense-0.6b", "hybrid-0.8b")
INSTALLED = "mlx-lm as installed"
WARM_UP = 512  # prompt tokens of all rows, in the run that is not counted
SETTLE_S = 0.1  # in which the last side's threads stop spinning

Tokens = list[list[int]]


class Side:
    """One program in a process of its own; benchmarks/peer_side.py says what it is asked."""

    def __init__(self, name: str, command: Sequence[object], **environment: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            cwd=HERE.parent,
        )
        self.runs_with: str = self._read()["is"]

    def ask(self, **request: Any) -> Answer:
        """Send a request and wait for its answer. Raises RuntimeError if the program has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer


@dataclass
class Kept:
    """What earlier calls measured with the same numbers, if it is to be kept at all."""

    file: Path | None
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    ceilings: list[Answer] = field(default_factory=list)

    @classmethod
    def read(cls, arguments: argparse.Namespace, rows: int) -> "Kept":
        """Find it in the folder that ``arguments`` name."""
        if arguments.keep is None:
            return cls(None)
        used = arguments
        way = f"alone-{used.prompts}-{used.depth}" if used.alone else f"{rows}"
        numbers = f"{used.prompt_tokens}-{used.tokens}-{used.threads}"
        file = used.keep / f"{used.shape}-{way}-{numbers}.json"
        return cls(file, **json.loads(file.read_text())) if file.exists() else cls(file)

    def write(self) -> None:
        """Keep it for later calls."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps({"answers": self.answers, "ceilings": self.ceilings}))


class Cast:
    """Makes the sides that take part."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._folder = arguments.models / arguments.shape
        if not self._folder.exists():
            name = arguments.shape
            if name == "dense-demo":
                name = os.environ[DENSE_MODEL]
            command = [sys.executable, "-m", "benchmarks.export", name, self._folder.absolute()]
            subprocess.run([str(word) for word in command], check=True, cwd=HERE.parent)
        self._file = self._folder.with_suffix(self._folder.suffix + ".gguf")
        if arguments.llama_python and not self._file.exists():
            writer = [arguments.llama_python, "-P", HERE / "gguf_file.py"]
            subprocess.run([*writer, self._folder, self._file], check=True)

    def of_a_batch(self, rows: int) -> list[Side]:
        """Return the sides that decode ``rows`` rows, ours first."""
        context = self._arguments.prompt_tokens + self._arguments.tokens
        lengths = ["--rows", rows, "--context", context]
        sides = [self._engine("engine", lengths), self._mlx_lm("mlx-lm", lengths)]
        if self._arguments.installed:
            sides.append(self._mlx_lm(INSTALLED, lengths, blas="reference"))
        return sides + self._llama(lengths)

    def of_one_user(self) -> list[Side]:
        """Return the sides that serve one user, with drafts and without, ours first."""
        depth = self._arguments.depth
        lengths = ["--rows", 1, "--context", 1024]
        drafts = [*lengths, "--draft", "demo-draft", "--depth"]
        sides = [
            self._engine("engine without drafts", lengths),
            self._engine(f"engine, draft model, depth {depth}", [*drafts, depth]),
            self._engine("engine, draft model, auto", [*drafts, "auto"]),
        ]
        if self._arguments.shape == "demo":  # the folder of float32 has no MTP head
            head = [*lengths, "--draft", "mtp", "--depth", depth]
            sides.append(self._engine(f"engine, MTP head, depth {depth}", head, folder="demo"))
        name = f"mlx-lm, draft model, depth {depth}"
        sides.append(self._mlx_lm(name, [*drafts, depth], kind="mlx-lm-speculative"))
        return [*sides, self._mlx_lm("mlx-lm", lengths), *self._llama(lengths)]

    def _engine(self, name: str, options: list[Any], folder: Any = None) -> Side:
        return self._ours_or_mlx_lm(name, "engine", folder or self._path(), options)

    def _mlx_lm(
        self, name: str, options: list[Any], kind: str = "mlx-lm", blas: str | None = None
    ) -> Side:
        environment = {"OCTAVO_BLAS": blas} if blas else {}
        return self._ours_or_mlx_lm(name, kind, self._path(), options, **environment)

    def _ours_or_mlx_lm(
        self, name: str, kind: str, folder: Any, options: list[Any], **environment: str
    ) -> Side:
        command = [sys.executable, "-m", "benchmarks.peer_side", kind, folder, *options]
        environment["OCTAVO_BLAS_THREADS"] = str(self._arguments.threads)
        return Side(name, command, **environment)

    def _llama(self, options: list[Any]) -> list[Side]:
        python = self._arguments.llama_python
        if not python:
            return []
        command = [python, "-P", HERE / "llama_cpp.py", self._file.absolute(), *options]
        return [Side("llama.cpp", [*command, "--threads", self._arguments.threads])]

    def _path(self) -> Path:
        return Path(self._folder.absolute())


def main() -> None:
    arguments = _arguments()
    cast = Cast(arguments)
    if arguments.alone:
        sides = cast.of_one_user()
        measure(arguments, sides, bundled_prompts(sides[0], arguments.prompts), rows=1)
        return
    for rows in arguments.rows:
        prompts = made_up_prompts(rows, arguments.prompt_tokens)
        measure(arguments, cast.of_a_batch(rows), prompts, rows=rows)


def measure(
    arguments: argparse.Namespace, sides: list[Side], prompts: Tokens, *, rows: int
) -> None:
    """Run all sides in turns, end them and print what came of it."""
    request: dict[str, Any] = {"prompts": prompts, "new_tokens": arguments.tokens}
    short = {"prompts": [prompt[:2] for prompt in prompts], "new_tokens": 2}
    begun = [prompt[: max(1, WARM_UP // rows)] for prompt in prompts]
    brief = {"prompts": begun, "new_tokens": min(arguments.tokens, 4)}
    for side in sides:  # a warm-up, and a shorter one for who takes minutes
        side.ask(**(short if side.name == INSTALLED else brief))
    kept = Kept.read(arguments, rows)
    answers, ceilings = kept.answers, kept.ceilings
    begin = len(ceilings)
    for number in range(begin, begin + arguments.rounds):
        for side in turns(sides, number):
            if side.name == INSTALLED and number >= begin + arguments.installed:
                continue
            time.sleep(SETTLE_S)
            answers.setdefault(side.name, []).append(side.ask(**request))
        time.sleep(SETTLE_S)
        ceilings.append(sides[0].ask(ceiling=rows))
    kept.write()
    base = {
        "benchmark": "peers",
        "shape": arguments.shape,
        "rows": rows,
        "prompt_tokens": sum(map(len, prompts)) / len(prompts),
        "new_tokens": arguments.tokens,
        "ceiling": {way: median(c[way] for c in ceilings) for way in ceilings[0]},
    }
    runs_with = {side.name: side.runs_with for side in sides}
    for line in report(answers):
        used = {name: runs_with.get(name) for name in (line["side"], line["peer"])}
        print(json.dumps(_rounded({**line, **base, "with": used})), flush=True)
    for side in sides:
        side.close()


def turns(sides: list[Side], number: int) -> list[Side]:
    """Return the order of round ``number``: all go first in turn, every other round backwards."""
    first = number // 2 % len(sides)
    order = sides[first:] + sides[:first]
    return order[::-1] if number % 2 else order


def made_up_prompts(rows: int, length: int) -> Tokens:
    """Return prompts of ids that every vocabulary here has."""
    return [[(97 * row + 31 * n + 7) % 8000 + 1 for n in range(length)] for row in range(rows)]


def bundled_prompts(side: Side, count: int) -> Tokens:
    """Return the ids of the first bundled conversations, as our ``side`` encodes them."""
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    chats = [line["messages"] for line in lines if "messages" in line]
    prompts: Tokens = side.ask(encode=chats[:count])["prompts"]
    return prompts


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="demo", choices=SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=64, help="of each row")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each row")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="of every side alike")
    parser.add_argument("--models", type=Path, default=Path("build/models"), help="made if missing")
    parser.add_argument("--llama-python", help="of llama.cpp's environment; none: without it")
    parser.add_argument(
        "--installed",
        type=int,
        default=0,
        help="rounds in which mlx-lm runs with its own BLAS, too",
    )
    parser.add_argument("--keep", type=Path, help="folder of what calls have measured so far")
    parser.add_argument("--alone", action="store_true", help="one user, with drafts")
    parser.add_argument("--prompts", type=int, default=4, help="of one user, one after another")
    parser.add_argument("--depth", type=int, default=3, help="drafts of one user")
    arguments = parser.parse_args()
    is_there = (arguments.models / arguments.shape).exists()
    if arguments.shape == "dense-demo" and not is_there and not os.environ.get(DENSE_MODEL):
        parser.error(f"dense-demo wants {DENSE_MODEL}, the folder of a dense model")
    if arguments.alone and arguments.shape not in ("demo", "dense-demo"):
        parser.error("--alone wants a trained model (demo, dense-demo): drafts must be accepted")
    return arguments


if __name__ == "__main__":
    main()
