"""One side of ``benchmarks.peers`` in a process of its own: this engine, or mlx-lm in two ways.

It prints {"is": what it runs with}, then answers each line {"prompts", "new_tokens"} with
{"tokens": of each prompt, "prompt_s": seconds until every row had its first token, "decode_s":
seconds from there on, "decoded": tokens in that time, "cpu_s": of all threads}. Prompts run in
groups of ``--rows``. The engine also answers {"ceiling": rows} and {"encode": texts or chats}.

    python -m benchmarks.peer_side engine FOLDER --rows 8
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from engine import blas

Run = Callable[[list[list[int]], int], dict[str, Any]]


class Clock:
    """Notes when every row has its first token, and how many tokens there are by then."""

    def __init__(self, rows: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self._begin = self._last = time.perf_counter()
        self._cpu_begin = time.process_time()
        self._first: float | None = None
        self._early = 0

    def note(self, row: int, tokens: Any) -> None:
        """Take in what ``row`` said."""
        self.tokens[row] += tokens

    def step(self) -> None:
        """End a step."""
        self._last = time.perf_counter()
        if self._first is None and all(self.tokens):
            self._first, self._early = self._last, sum(map(len, self.tokens))

    def answer(self) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self._first is not None
        return {
            "tokens": self.tokens,
            "prompt_s": self._first - self._begin,
            "decode_s": self._last - self._first,
            "decoded": sum(map(len, self.tokens)) - self._early,
            "cpu_s": time.process_time() - self._cpu_begin,
        }


class EngineSide:
    """This engine, without a prefix cache: the same prompts come again and again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from engine import Engine

        options: dict[str, Any] = {}
        if arguments.draft:
            depth = arguments.depth
            options["speculate"] = depth if depth == "auto" else int(depth)
            if arguments.draft == "mtp":
                options["drafter"] = "mtp"
            else:
                options |= {"drafter": "peer", "draft_model": arguments.draft}
        self.engine = Engine.load(
            arguments.folder,
            max_rows=arguments.rows,
            max_context=max(512, arguments.context),
            prefix_cache=False,
            **options,
        )

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Decode ``prompts`` together."""
        from engine import SamplingParams

        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True, temperature=0.0)
        clock = Clock(len(prompts))
        rows = {self.engine.submit(prompt, params): n for n, prompt in enumerate(prompts)}
        while self.engine.has_work:
            for delta in self.engine.step():
                clock.note(rows[delta.request_id], delta.token_ids)
            clock.step()
        return clock.answer()

    def ceiling(self, rows: int) -> dict[str, float]:
        """Tokens a second if a step were its matrix products and nothing else, three ways."""
        import mlx.core as mx
        from mlx import nn

        model = self.engine.model
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        text = getattr(model, "language_model", model)
        calls: list[tuple[Any, Any]] = [(m, m.weight) for m in linear]
        if getattr(text, "lm_head", None) is None:
            embedding = text.model.embed_tokens
            calls.append((embedding.as_linear, embedding.weight))
        widths = {weight.shape[1] for _, weight in calls}
        inputs = {width: mx.random.normal((rows, width)) for width in widths}
        mx.eval(inputs)
        orders: dict[str, Callable[[Any, Any, Any], Any]] = {
            "x @ W.T": lambda _, w, x: x @ w.T,
            "W @ x.T": lambda _, w, x: w @ x.T,
            "as the engine multiplies": lambda call, _, x: call(x),
        }
        rates = {}
        for name, product in orders.items():
            begin = time.perf_counter()
            for call, weight in calls:
                mx.eval(product(call, weight, inputs[weight.shape[1]]))
            rates[name] = rows / (time.perf_counter() - begin)
        return rates


class BatchSide:
    """mlx-lm's ``batch_generate``: its loop, with a clock in it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model = load_mlx_lm(arguments.folder)
        self.rows = arguments.rows

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Decode ``prompts`` together."""
        import mlx.core as mx
        from mlx_lm.generate import BatchGenerator

        clock = Clock(len(prompts))
        generator = BatchGenerator(
            self.model,
            stop_tokens=[],
            completion_batch_size=self.rows,
            prefill_batch_size=self.rows,
        )
        rows = {
            uid: n for n, uid in enumerate(generator.insert(prompts, [new_tokens] * len(prompts)))
        }
        while responses := generator.next_generated():
            for response in responses:
                clock.note(rows[response.uid], [response.token])
            clock.step()
        generator.close()
        mx.synchronize()  # it has begun one step more, which is nobody's; the next side comes now
        return clock.answer()


class SpeculativeSide:
    """mlx-lm's ``speculative_generate_step``, which is for one user alone."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model = load_mlx_lm(arguments.folder)
        self.draft = load_mlx_lm(arguments.draft)
        self.depth = int(arguments.depth)

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Decode the one prompt."""
        import mlx.core as mx
        from mlx_lm.generate import speculative_generate_step

        (prompt,) = prompts
        clock = Clock(1)
        for token, _, _ in speculative_generate_step(
            mx.array(prompt),
            self.model,
            self.draft,
            num_draft_tokens=self.depth,
            max_tokens=new_tokens,
        ):
            clock.note(0, [int(token)])
            clock.step()
        return clock.answer()


def load_mlx_lm(name: str) -> Any:
    """Return mlx-lm's own model, in float32 (a folder or an embedded model of the engine)."""
    from engine.loading import load

    return load(name, dtype="float32").model


SIDES: dict[str, Any] = {
    "engine": EngineSide,
    "mlx-lm": BatchSide,
    "mlx-lm-speculative": SpeculativeSide,
}


def answer(side: Any, request: dict[str, Any], rows: int) -> dict[str, Any]:
    """Answer one request; what the side refuses becomes {"refused": why}."""
    if "ceiling" in request:
        rates: dict[str, Any] = side.ceiling(request["ceiling"])
        return rates
    if "encode" in request:
        return {"prompts": [side.engine.encode(prompt) for prompt in request["encode"]]}
    prompts = request["prompts"]
    total: dict[str, Any] = {"tokens": [], "decoded": 0}
    total |= dict.fromkeys(("prompt_s", "decode_s", "cpu_s"), 0.0)
    for first in range(0, len(prompts), rows):
        try:
            part = side.run(prompts[first : first + rows], request["new_tokens"])
        except ValueError as error:
            return {"refused": str(error)}
        total = {key: total[key] + part[key] for key in total}
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--draft", help="draft model, or mtp for the model's own head")
    parser.add_argument("--depth", default="auto")
    arguments = parser.parse_args()
    side = SIDES[arguments.side](arguments)
    print(json.dumps({"is": f"BLAS {blas.current()}"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(side, json.loads(line), arguments.rows)), flush=True)


if __name__ == "__main__":
    main()
