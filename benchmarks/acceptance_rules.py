"""How many drafts an engine accepts: the coupled rule beside the classical one, by temperature.

Of every place in a window: how many drafts were accepted of those that were reached, all drafts
before them being accepted.

    python -m benchmarks.acceptance_rules --prompts chat --limit 8 --depth 3
"""

import engine  # noqa: F401  (loads a BLAS, which has to be there before mlx is)

# isort: split
import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.acceptance import read_prompts
from engine.build import build
from engine.engine import Engine
from engine.sampling_params import SamplingParams
from scheduler.round import Verdict

DRAFTERS: dict[str, dict[str, Any]] = {
    "mtp": {"drafter": "mtp"},
    "peer": {"drafter": "peer", "draft_model": "demo-draft"},
    "lookup": {"drafter": "lookup"},
}


class Places:
    """Drafts reached and accepted, by their place in the window."""

    def __init__(self, depth: int) -> None:
        self.reached, self.accepted = [0] * depth, [0] * depth

    def counting(self, run: Callable[..., list[Verdict]]) -> Callable[..., list[Verdict]]:
        """Return ``run``, an executor's, whose verdicts are counted."""

        def counted(*arguments: Any) -> list[Verdict]:
            verdicts = run(*arguments)
            self._count(verdicts)
            return verdicts

        return counted

    def _count(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            for place in range(min(verdict.num_drafted, verdict.num_accepted + 1)):
                self.reached[place] += 1
                self.accepted[place] += place < verdict.num_accepted


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
        executor: Any = parts.executor
        run, read = executor.run, executor.read
        prompts = list(read_prompts(parts.loaded, options.prompts))[: options.limit]
        for temperature in (0.0, 0.5, 0.8, 1.0):
            for rule in ("coupled", "rejection"):
                running = Engine(replace(parts, options=replace(parts.options, acceptance=rule)))
                places = Places(options.depth)
                executor.run, executor.read = places.counting(run), places.counting(read)
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
                    "by_place": [
                        f"{hits} / {count}"
                        for hits, count in zip(places.accepted, places.reached, strict=True)
                    ],
                    "tokens_a_target_pass": round(made / (made - accepted), 2),
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
