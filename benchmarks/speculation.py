"""What drafts bring over plain batched decoding, by batch size, drafter and depth.

The same engine with and without drafts, on the demo model's bundled prompts, greedy, interleaved
pairs; answers are compared. Tokens a target pass stand beside the speed.

    python -m benchmarks.speculation --rows 1 4 8 --depths 1 2 3 auto
"""

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from engine import Engine, SamplingParams, blas
from engine.loading import DEMO_PROMPTS

from .pairs import measure_pairs


class Decoder:
    """One engine, run again and again over the same prompts."""

    def __init__(self, rows: int, prompts: list[Any], tokens: int, **options: Any) -> None:
        self.engine = Engine.load(
            "demo", max_rows=rows, max_context=1024, prefix_cache=False, **options
        )
        self.prompts = prompts
        self.params = SamplingParams(max_tokens=tokens, temperature=0.0)
        self.answers: list[list[int]] = []
        self.passes = self.tokens = 0

    def rate(self) -> float:
        """Tokens a second of one run, prompts included."""
        before = self.engine.stats()
        begin = time.perf_counter()
        self.answers = [a.token_ids for a in self.engine.generate(self.prompts, self.params)]
        seconds = time.perf_counter() - begin
        self.passes += self.engine.stats().num_steps - before.num_steps
        said = sum(map(len, self.answers))
        self.tokens += said
        return said / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--depths", nargs="+", default=["1", "2", "3", "4", "auto"])
    parser.add_argument("--drafters", nargs="+", default=["mtp"])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--kind", default="chat", choices=["chat", "text"])
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]
    found = [line.get("messages") or line.get("prompt") for line in lines]
    wanted = str if arguments.kind == "text" else list
    chosen = [p[:1200] if wanted is str else p for p in found if isinstance(p, wanted)]
    for rows in arguments.rows:
        prompts = [chosen[n % len(chosen)] for n in range(max(rows, 4))]
        plain = Decoder(rows, prompts, arguments.tokens, speculate="off")
        for drafter in arguments.drafters:
            for depth in arguments.depths:
                speculate = depth if depth == "auto" else int(depth)
                options: dict[str, Any] = {"speculate": speculate, "drafter": drafter}
                if drafter == "peer":
                    options["draft_model"] = "demo-draft"
                drafting = Decoder(rows, prompts, arguments.tokens, **options)
                ratio = measure_pairs(drafting.rate, plain.rate, arguments.pairs)
                stats = drafting.engine.stats().scheduler
                print(
                    json.dumps(
                        {
                            "benchmark": "speculation",
                            "kind": arguments.kind,
                            "rows": rows,
                            "drafter": drafter,
                            "depth": depth,
                            **asdict(ratio),
                            "acceptance": stats.accepted_tokens / max(1, stats.drafted_tokens),
                            "tokens_a_step": drafting.tokens / drafting.passes,
                            "tokens_a_step_plain": plain.tokens / plain.passes,
                            "same_answers": drafting.answers == plain.answers,
                            "blas": str(blas.current()).split(" from ")[0],
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
