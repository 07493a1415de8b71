"""How many tokens a second this engine decodes beside mlx-lm's own ``batch_generate``.

Same weights, prompts, lengths and machine, greedy, interleaved pairs. The first line gives both
sides the same BLAS and dtype; the second leaves mlx-lm as it is installed, in a process of its own
with the wheel's BLAS. The time of the bare matrix products stands beside as the ceiling.

    python -m benchmarks.throughput --shape dense-0.6b --rows 8
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any


def main() -> None:
    arguments = _arguments()
    if arguments.peer:
        _serve_peer(arguments)
        return
    from engine import blas

    from .pairs import measure_pairs

    side = OurSide(arguments)
    base = {
        "benchmark": "throughput",
        "shape": arguments.shape,
        "rows": arguments.rows,
        "prompt_tokens": arguments.prompt_tokens,
        "new_tokens": arguments.tokens,
        "blas": str(blas.current()).split(" from ")[0],
    }
    ceiling = side.ceiling()
    print(json.dumps({**base, "line": "ceiling of the bare products", **ceiling}), flush=True)
    same = measure_pairs(side.ours, side.theirs, arguments.pairs)
    agreement = side.agreement()
    line = "mlx-lm with the same BLAS and dtype"
    print(json.dumps({**base, "line": line, **asdict(same), "agreement": agreement}), flush=True)
    for dtype in arguments.installed:
        peer = Peer(arguments, dtype)
        installed = measure_pairs(side.ours, peer.run, arguments.installed_pairs)
        peer.close()
        line = f"mlx-lm as installed, {dtype}"
        print(json.dumps({**base, "line": line, **asdict(installed)}), flush=True)


class OurSide:
    """One process, one BLAS, one set of weights: this engine and mlx-lm in turns."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import mlx.core as mx

        from engine.build import build_parts
        from engine.engine import Engine
        from engine.options import EngineOptions

        from .shapes import as_loaded, build_model, twin

        self.arguments = arguments
        self.peer_model = build_model(arguments.shape, mx.float32)
        model = twin(self.peer_model)
        loaded = as_loaded(model, arguments.shape)
        self.prompts = make_prompts(arguments)
        options = EngineOptions(max_rows=arguments.rows, max_context=512, prefix_cache=False)
        self.engine = Engine(build_parts(loaded, options))
        self.said: dict[str, list[list[int]]] = {}

    def ours(self) -> float:
        """Tokens a second of this engine, prompts included in the time."""
        from engine import SamplingParams

        params = SamplingParams(max_tokens=self.arguments.tokens, ignore_eos=True, temperature=0.0)
        begin = time.perf_counter()
        answers = list(self.engine.generate(self.prompts, params))
        seconds = time.perf_counter() - begin
        self.said["ours"] = [answer.token_ids for answer in answers]
        return sum(map(len, self.said["ours"])) / seconds

    def theirs(self) -> float:
        """Tokens a second of mlx-lm's batch_generate, likewise."""
        rate, self.said["theirs"] = run_mlx_lm(
            self.peer_model, self.prompts, self.arguments.tokens, self.arguments.rows
        )
        return rate

    def agreement(self) -> float:
        """The part of answers' leading tokens that both sides said alike, until they part."""
        alike = total = 0
        for ours, theirs in zip(self.said["ours"], self.said["theirs"], strict=True):
            total += len(ours)
            for mine, their in zip(ours, theirs, strict=False):
                if mine != their:
                    break
                alike += 1
        return alike / total

    def ceiling(self) -> dict[str, float]:
        """Tokens a second if a step were its matrix products and nothing else, done three ways."""
        import mlx.core as mx
        from mlx import nn

        from engine.cpu.lanes import Lanes
        from engine.cpu.products import tiles_pay
        from engine.cpu.skinny_weight import SkinnyWeight

        from . import turns

        rows = self.arguments.rows
        model = self.peer_model
        weights = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
        text = getattr(model, "language_model", model)
        if getattr(text, "lm_head", None) is None:
            weights.append(text.model.embed_tokens.weight)
        inputs = {w.shape[1]: mx.random.normal((rows, w.shape[1])) for w in weights}
        mx.eval(inputs)
        lanes, tiles = Lanes.of_thread(), tiles_pay()
        skinny = [SkinnyWeight(weight, lanes, tiles=tiles) for weight in weights]
        ways = {
            "x @ W.T": lambda w, x: x @ w.weight.T,
            "W @ x.T": lambda w, x: w.weight @ x.T,
            "as this engine does": lambda w, x: w.product(x),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(7):
            for way, multiply in ways.items():
                time.sleep(0.1)  # the last way's BLAS threads spin for a while
                with nullcontext() if way == "as this engine does" else turns.all_threads():
                    begin = time.perf_counter()
                    for weight in skinny:
                        mx.eval(multiply(weight, inputs[weight.weight.shape[1]]))
                    times[way].append(time.perf_counter() - begin)
        return {way: rows / sorted(taken)[len(taken) // 2] for way, taken in times.items()}


def make_prompts(arguments: argparse.Namespace) -> list[list[int]]:
    """Prompts of ids that every vocabulary here has."""
    return [
        [(97 * row + 31 * place + 7) % 8000 + 1 for place in range(arguments.prompt_tokens)]
        for row in range(arguments.rows)
    ]


def run_mlx_lm(
    model: Any, prompts: list[list[int]], num_tokens: int, rows: int
) -> tuple[float, list[list[int]]]:
    """Tokens a second of mlx-lm's batch_generate, and the tokens."""
    begin = time.perf_counter()
    response = answer_with_mlx_lm(model, prompts, num_tokens, rows)
    seconds = time.perf_counter() - begin
    return sum(map(len, response.token_ids)) / seconds, response.token_ids


def answer_with_mlx_lm(
    model: Any, prompts: list[list[int]], num_tokens: int, rows: int, **choices: Any
) -> Any:
    """What mlx-lm's batch_generate answers, ``rows`` prompts at a time, on all BLAS threads."""
    from mlx_lm.generate import batch_generate

    from .turns import all_threads

    with all_threads():
        return batch_generate(
            model,
            NoText(),
            prompts,
            max_tokens=num_tokens,
            return_token_ids=True,
            completion_batch_size=rows,
            prefill_batch_size=rows,
            **choices,
        )


class NoText:
    """Stands for a tokenizer, so that mlx-lm is not charged for text nor stopped by an end id."""

    eos_token_ids: tuple[int, ...] = ()

    def decode(self, _tokens: list[int]) -> str:
        """Return nothing."""
        return ""


class Peer:
    """mlx-lm as installed, in a process that never saw this engine's BLAS."""

    def __init__(self, arguments: argparse.Namespace, dtype: str) -> None:
        command = [sys.executable, "-m", "benchmarks.throughput", "--peer", dtype]
        command += ["--shape", arguments.shape, "--rows", str(arguments.rows)]
        command += ["--tokens", str(arguments.tokens)]
        command += ["--prompt-tokens", str(arguments.prompt_tokens)]
        environment = {**os.environ, "OCTAVO_BLAS": "reference"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self) -> float:
        """Tokens a second of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve_peer(arguments: argparse.Namespace) -> None:
    import mlx.core as mx

    from .shapes import build_model

    model = build_model(arguments.shape, getattr(mx, arguments.peer))
    prompts = make_prompts(arguments)
    for _ in sys.stdin:
        rate, _ = run_mlx_lm(model, prompts, arguments.tokens, arguments.rows)
        print(rate, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="demo", help="demo, dense-0.6b or hybrid-0.8b")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of each row")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each row")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--installed", nargs="*", default=["float32"], help="dtypes; none to skip")
    parser.add_argument("--installed-pairs", type=int, default=15)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
