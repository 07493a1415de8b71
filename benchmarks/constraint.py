"""What a JSON schema costs: throughput with one over throughput without.

The same engine, prompts and number of tokens, interleaved pairs. The schema asks for a long list,
so that no answer ends early; without it the end of the answer is ignored. With drafts the two texts
are not accepted alike, so tokens a step stand beside the ratio.

    python -m benchmarks.constraint --rows 8 --speculate off 3
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from typing import Any

from engine import Engine, SamplingParams, blas
from engine.loading import DEMO_PROMPTS

from .pairs import measure_pairs

SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "city": {"type": "string", "pattern": "[A-Z][a-z]{2,9}"},
            "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "city", "tags"],
        "additionalProperties": False,
    },
}


class Decoder:
    """One engine; each run decodes all prompts to the same number of tokens."""

    def __init__(self, arguments: argparse.Namespace, speculate: int | str) -> None:
        rows = arguments.rows
        self.engine = Engine.load(
            "demo", max_rows=rows, max_context=1024, prefix_cache=False, speculate=speculate
        )
        lines = map(json.loads, DEMO_PROMPTS.read_text().splitlines())
        chats = [line["messages"] for line in lines if "messages" in line]
        self.prompts: list[Any] = [chats[number % len(chats)] for number in range(rows)]
        self.free = SamplingParams(
            max_tokens=arguments.tokens,
            temperature=arguments.temperature,
            seed=1,
            ignore_eos=True,
        )
        self.tokens_a_step: dict[str, float] = {}
        self.constrained = replace(self.free, ignore_eos=False, json_schema=json.dumps(SCHEMA))

    def rate(self, params: SamplingParams) -> float:
        """Tokens a second of one run, prompts included."""
        before = self.engine.stats().num_steps
        begin = time.perf_counter()
        answers = list(self.engine.generate(self.prompts, params))
        seconds = time.perf_counter() - begin
        assert {len(answer.token_ids) for answer in answers} == {params.max_tokens}
        num_tokens = len(answers) * params.max_tokens
        self.tokens_a_step["free" if params is self.free else "constrained"] = num_tokens / (
            self.engine.stats().num_steps - before
        )
        return num_tokens / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens of each row")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--speculate", nargs="+", default=["off"], help="off, auto or a depth")
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    for depth in arguments.speculate:
        decoder = Decoder(arguments, depth if depth in ("off", "auto") else int(depth))
        ratio = measure_pairs(
            lambda decoder=decoder: decoder.rate(decoder.constrained),
            lambda decoder=decoder: decoder.rate(decoder.free),
            arguments.pairs,
        )
        print(
            json.dumps(
                {
                    "benchmark": "constraint",
                    "rows": arguments.rows,
                    "temperature": arguments.temperature,
                    "speculate": depth,
                    **asdict(ratio),
                    "tokens_a_step": decoder.tokens_a_step,
                    "blas": str(blas.current()).split(" from ")[0],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
