"""A backend whose answers are a pure function of the request, three tokens a step.

Run as a script it is ``octavo batch`` with that backend and ``--step-seconds`` between steps, so
that tests may kill it.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from engine.answer import Delta, TokenLogprob, Usage
from ipc.bad_request_error import BadRequestError

TOKENS_PER_STEP = 3


def token_text(token_id: int) -> str:
    return f"<{token_id}>"


def tokens_of(prompt: Any, seed: int, index: int, max_tokens: int) -> list[int]:
    """The whole answer, computed from what is asked alone."""
    start = sum(map(ord, str(prompt))) + seed + 7 * index
    return [(start + 31 * position) % 1000 for position in range(max_tokens)]


class FakeBackend:
    def __init__(self, *, max_rows: int = 2, step_seconds: float = 0.0):
        self.max_rows = max_rows
        self.waiting: list[tuple[str, int, list[int], int, bool]] = []
        self.running: list[tuple[str, int, list[int], int, bool]] = []
        self.done: dict[tuple[str, int], int] = {}
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self.most_held = 0  # samples submitted and not ended
        self.fails: Mapping[str, str] = {}  # prompt -> why its last delta is an error
        self._step_seconds = step_seconds
        self._prompts: dict[str, Any] = {}

    def submit(self, request_id: str, prompt: Any, params: Any) -> int:
        if len(prompt) > 500:
            raise BadRequestError("refused", f"the prompt has {len(prompt)} tokens; 500 fit")
        self.submitted.append(request_id)
        self._prompts[request_id] = prompt
        for index in range(params.n):
            tokens = tokens_of(prompt, params.seed, index, params.max_tokens)
            wants_logprobs = params.logprobs is not None
            self.waiting.append((request_id, index, tokens, len(prompt), wants_logprobs))
        self.most_held = max(self.most_held, len(self.waiting) + len(self.running))
        return int(params.seed)

    def step(self) -> list[Delta]:
        time.sleep(self._step_seconds)
        while self.waiting and len(self.running) < self.max_rows:
            self.running.append(self.waiting.pop(0))
        if any("!raise" in str(self._prompts[row[0]]) for row in self.running):
            raise RuntimeError("the engine fell over")
        deltas = [self._advance(*row) for row in self.running]
        ended = {(delta.request_id, delta.index) for delta in deltas if delta.finish_reason}
        self.running = [row for row in self.running if row[:2] not in ended]
        return deltas

    def _advance(
        self, request_id: str, index: int, tokens: list[int], num_prompt: int, wants_logprobs: bool
    ) -> Delta:
        start = self.done.get((request_id, index), 0)
        run = tokens[start : start + TOKENS_PER_STEP]
        end = self.done[request_id, index] = start + len(run)
        ends = end == len(tokens)
        error = self.fails.get(str(self._prompts[request_id])) if ends else None
        return Delta(
            request_id,
            index,
            "".join(map(token_text, run)),
            tuple(run),
            tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in run)
            if wants_logprobs
            else None,
            ("error" if error else "length") if ends else None,
            Usage(num_prompt, end, cached_tokens=1) if ends else None,
            error,
        )

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def token_text(self, token_id: int) -> str:
        return token_text(token_id)

    def figures(self) -> Mapping[str, float]:
        return {"mean_batch_width": 1.5, "peak_memory_bytes": 1 << 20}


def main() -> int:
    from ipc.cli import batch, main

    class FakeBatch:
        NAME = "batch"
        HELP = "batch over the fake"

        @staticmethod
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            batch.add_arguments(parser)
            parser.add_argument("--step-seconds", type=float, default=0.0)

        @staticmethod
        def run(arguments: argparse.Namespace) -> int:
            make = lambda: FakeBackend(max_rows=4, step_seconds=arguments.step_seconds)  # noqa: E731
            return batch.run_batch(arguments, make)

    return main.run_command(FakeBatch(), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
