"""How many drafts an engine accepts: the coupled rule beside the classical one, by temperature.

python -m benchmarks.acceptance_rules --prompts chat --limit 8 --depth 3
"""

import engine  # noqa: F401  (loads a BLAS, which has to be there before mlx is)

# isort: split
import argparse
import json
from dataclasses import replace
from typing import Any

from benchmarks.acceptance import read_prompts
from engine.build import build
from engine.engine import Engine
from engine.sampling_params import SamplingParams

DRAFTERS: dict[str, dict[str, Any]] = {
    "mtp": {"drafter": "mtp"},
    "peer": {"drafter": "peer", "draft_model": "demo-draft"},
    "lookup": {"drafter": "lookup"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", choices=("chat", "text"), default="chat")
    parser.add_argument("--limit", type=int, default=8, help="prompts, decoded together")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer, at most")
    parser.add_argument("--depth", type=int, default=3, help="drafts a round")
    options = parser.parse_args()

    for drafter, choices in DRAFTERS.items():
        sizes = {"max_rows": options.limit, "max_context": 1024}
        parts = build("demo", speculate=options.depth, **sizes, **choices)
        prompts = list(read_prompts(parts.loaded, options.prompts))[: options.limit]
        for temperature in (0.0, 0.5, 0.8, 1.0):
            for rule in ("coupled", "rejection"):
                running = Engine(replace(parts, options=replace(parts.options, acceptance=rule)))
                params = SamplingParams(
                    max_tokens=options.tokens, temperature=temperature, seed=1, ignore_eos=True
                )
                usages = [answer.usage for answer in running.generate(prompts, params)]
                drafted = sum(usage.drafted_tokens for usage in usages if usage)
                accepted = sum(usage.accepted_tokens for usage in usages if usage)
                made = sum(usage.completion_tokens for usage in usages if usage)
                line = {
                    "benchmark": "acceptance_rules",
                    "drafter": drafter,
                    "temperature": temperature,
                    "rule": rule,
                    "accepted": accepted,
                    "drafted": drafted,
                    "rate": round(accepted / max(drafted, 1), 3),
                    "tokens_a_target_pass": round(made / (made - accepted), 2),
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
