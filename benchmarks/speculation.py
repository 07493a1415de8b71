"""What drafts bring over plain batched decoding, by batch size, drafter and depth.

The demo model on its bundled prompts, greedy. Each case decodes together with an engine without
drafts, a step of one and a step of the other, for the machine changes its speed from one second to
the next (where steps run ahead of the host: all of one and all of the other). What is timed is
decoding, from the first token of the last prompt on. Answers are compared; tokens a row and step
stand beside the speed. ``auto`` decodes a while before it is counted, for it learns by decoding.

    python -m benchmarks.speculation --rows 1 8 --depths 1 2 3 auto
    python -m benchmarks.speculation --table            # everything, in 12 minutes

Where an engine's memory happens to lie makes a percent or two, for as long as it lives. So for
small differences run several processes of a few rounds each, and put their pairs together:

    for n in 1 2 3; do python -m benchmarks.speculation --rounds 5 --depths auto >> lines; done
    python -m benchmarks.speculation --pool lines
"""

import argparse
import gc
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from engine import Engine, SamplingParams, blas
from engine.build import Parts, build_parts
from engine.executor import Executor
from engine.loading import DEMO_PROMPTS, LoadedModel, load
from engine.options import EngineOptions

from .pairs import ratio_of

ROWS = (1, 2, 4, 8, 16, 32)
DRAFTERS = ("mtp", "peer", "lookup")
DEPTHS = ("1", "2", "3", "4", "auto")
RESTS = "off"  # a drafter that never drafts: what it costs to have one
MOST_DRAFTS = 4
TOKENS = {1: 48, 2: 40, 4: 32, 8: 24, 16: 20, 32: 16}  # an answer's, in a table
LEAST_ROUNDS = 5  # however little time there is
RUNS_TO_LEARN, ROUNDS_TO_LEARN = 4, 200  # at least: what is tried at first is tried by then
LONGEST_TALK = 600  # characters


class Decoded(NamedTuple):
    """One run over the prompts, from the first token of the last prompt on."""

    seconds: float
    tokens: int
    steps: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Case:
    """One way to decode: its engine goes on from run to run, and so does what it learns."""

    def __init__(self, parts: Parts, drafter: str, depth: str) -> None:
        self.drafter, self.depth = drafter, depth
        speculate: Any = int(depth) if depth.isdigit() else depth
        self.engine = Engine(replace(parts, options=replace(parts.options, speculate=speculate)))
        self.affordable = self.engine.parts.executor.affordable
        self.answers: list[list[int]] = []
        self.runs: list[Decoded] = []
        self._said: dict[str, list[int]] = {}

    def run(self, prompts: Sequence[Any], tokens: int) -> None:
        """Decode ``tokens`` tokens of an answer to each prompt."""
        run_in_turn([self], prompts, tokens)

    def begin(self, prompts: Sequence[Any], tokens: int) -> None:
        """Submit the prompts of a run."""
        self._take_over()
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        ids = [self.engine.submit(prompt, params) for prompt in prompts]
        self._said = {request_id: [] for request_id in ids}
        self._seconds: list[float] = []  # of the steps since all have said something
        self._before = 0

    def step(self) -> None:
        """Run one step of it."""
        counts = all(self._said.values())
        if counts and not self._seconds:
            self._before = sum(map(len, self._said.values()))
        begin = time.perf_counter()
        deltas = self.engine.step()
        if counts:
            self._seconds.append(time.perf_counter() - begin)
        for delta in deltas:
            self._said[delta.request_id] += delta.token_ids

    def end(self) -> None:
        """Keep what the run brought."""
        self.answers = list(self._said.values())
        tokens = sum(map(len, self.answers)) - self._before
        self.runs.append(Decoded(sum(self._seconds), tokens, len(self._seconds)))

    def forget_runs(self) -> None:
        """Count from here on."""
        self.runs.clear()

    def _take_over(self) -> None:
        """Cases of one drafter share its memory; what is left there of another is never read."""
        executor, scheduler = self.engine.parts.executor, self.engine.scheduler
        executor.attach(
            lambda seq_id: scheduler.sequences[seq_id].tokens, affordable=self.affordable
        )


def make_parts(model: LoadedModel, drafter: str, max_rows: int) -> Parts:
    """Make parts of the demo model, with room for ``max_rows`` rows of MOST_DRAFTS drafts.

    All engines run one model: copies of its weights may lie in memory better or worse.
    """
    options: dict[str, Any] = {"max_rows": max_rows, "max_context": 1024, "prefix_cache": False}
    options["prompt_tokens_per_round"] = 1 << 16  # all prompts at once
    if drafter == "peer":
        options["draft_model"] = "demo-draft"
    is_plain = drafter == "plain"
    options |= {"speculate": "off"} if is_plain else {"speculate": MOST_DRAFTS, "drafter": drafter}
    return build_parts(model, EngineOptions(**options))


def without_drafter(parts: Parts) -> Parts:
    """Return ``parts`` without their drafter, for engines that never decode at the same time.

    What they have of kernels, graphs and memory is then the same.
    """
    own = parts.executor
    executor = Executor(own.forward, own.store, own.block_size, in_order=own.in_order)
    options = replace(parts.options, speculate="off")
    return replace(parts, executor=executor, options=options)


def run_in_turn(cases: Sequence[Case], prompts: Sequence[Any], tokens: int) -> None:
    """Let all decode answers to the same prompts, each a step at a time.

    Where steps run ahead, on a device of its own, one engine's would run in the other's time: there
    each decodes all its answers at once.
    """
    if any(case.engine.parts.runs_ahead for case in cases):
        for case in cases if len(cases[0].runs) % 2 else reversed(cases):
            case.begin(prompts, tokens)
            while case.engine.has_work:
                case.step()
            case.end()
        return
    for case in cases:
        case.begin(prompts, tokens)
    number = 0
    while going := [case for case in cases if case.engine.has_work]:
        number += 1
        for case in going if number % 2 else reversed(going):
            case.step()
    for case in cases:
        case.end()


def measure(plain: Case, case: Case, prompts: Sequence[Any], rows: int, limits: "Limits") -> None:
    """Run both as often as ``limits`` say, every round on the next ``rows`` prompts."""

    def chosen(number: int) -> list[Any]:
        return [prompts[(number * rows + place) % len(prompts)] for place in range(rows)]

    to_learn = max(RUNS_TO_LEARN, -(-ROUNDS_TO_LEARN // limits.tokens))
    for number in range(to_learn if case.depth == "auto" else 1):
        case.run(chosen(number), limits.tokens)
    plain.run(chosen(0), limits.tokens)
    plain.forget_runs()
    case.forget_runs()
    begin = time.perf_counter()
    for number in range(limits.rounds):
        spent = time.perf_counter() - begin
        if number >= LEAST_ROUNDS and spent * (number + 1) / number > limits.seconds:
            break
        run_in_turn([plain, case], chosen(number), limits.tokens)


class Limits(NamedTuple):
    """How much to run: tokens an answer, rounds at most, and seconds."""

    tokens: int
    rounds: int
    seconds: float


def line_of(case: Case, plain: Case, rows: int, tokens: int) -> dict[str, Any]:
    """Return what is printed of one case."""
    pairs = [
        (round(ours.rate, 2), round(theirs.rate, 2))
        for ours, theirs in zip(case.runs, plain.runs, strict=True)
    ]
    stats = case.engine.stats().scheduler
    row_steps = sum(run.steps for run in case.runs) * rows
    return {
        "benchmark": "speculation",
        "rows": rows,
        "drafter": case.drafter,
        "depth": case.depth,
        **asdict(ratio_of(pairs)),
        "tokens": tokens,
        "acceptance": stats.accepted_tokens / max(1, stats.drafted_tokens),
        "tokens_a_row_and_step": sum(run.tokens for run in case.runs) / row_steps,
        "same_answers": case.answers == plain.answers,
        "blas": str(blas.current()).split(" from ")[0],
        "pairs": pairs,
    }


def pooled(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each case of ``lines``, with the pairs of all processes together."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        key = tuple(line[name] for name in ("drafter", "depth", "rows", "tokens", "kind", "blas"))
        cases.setdefault(key, []).append(line)
    return [_pooled(of_case) for of_case in cases.values()]


def _pooled(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means = ("acceptance", "tokens_a_row_and_step")
    pairs = [(ours, theirs) for line in lines for ours, theirs in line["pairs"]]
    return {
        **lines[0],
        **asdict(ratio_of(pairs)),
        **{name: sum(line[name] for line in lines) / len(lines) for name in means},
        "same_answers": all(line["same_answers"] for line in lines),
        "processes": len(lines),
        "pairs": pairs,
    }


def read_prompts(kind: str) -> list[Any]:
    """Return the demo's prompts: short conversations, or the beginnings of texts.

    Beside short ones a conversation with a document in it makes the rounds of prompts, which are
    not timed, ten times as long.
    """
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]
    if kind == "chat":
        talks = [line["messages"] for line in lines if line.get("messages")]
        return [talk for talk in talks if len(json.dumps(talk)) <= LONGEST_TALK]
    return [line["prompt"][:1200] for line in lines if line.get("prompt")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="fewer tokens for more rows")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    depths = (*DEPTHS, RESTS)
    parser.add_argument("--depths", nargs="+", default=list(DEPTHS), choices=depths)
    parser.add_argument("--drafters", nargs="+", default=None, choices=DRAFTERS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=None, help="for all rounds together")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--kind", default="chat", choices=["chat", "text"])
    parser.add_argument("--pool", type=Path, nargs="+", help="files of lines to put together")
    arguments = parser.parse_args()
    if arguments.pool:
        texts = [line for file in arguments.pool for line in file.read_text().splitlines()]
        for line in pooled(json.loads(text) for text in texts if text.startswith("{")):
            print(json.dumps(line), flush=True)
        return
    drafters = arguments.drafters or (DRAFTERS if arguments.table else ("mtp",))
    minutes = arguments.minutes or (12.0 if arguments.table else float("inf"))
    model, most = load("demo"), max(arguments.rows)
    end = time.perf_counter() + 60 * minutes
    plain_parts = None
    for number, drafter in enumerate(drafters):
        parts = make_parts(model, drafter, most)
        if parts.runs_ahead:
            plain_parts = without_drafter(parts)
        elif plain_parts is None:
            plain_parts = make_parts(model, "plain", most)
        for done, rows in enumerate(arguments.rows):
            tokens = TOKENS.get(rows, 16) if arguments.table else arguments.tokens
            to_do = len(arguments.rows) * (len(drafters) - number) - done
            left = (end - time.perf_counter()) / to_do
            plain = Case(plain_parts, "plain", "off")
            # the rest is for warming up
            limits = Limits(tokens, arguments.rounds, left * 0.9 / len(arguments.depths))
            for depth in arguments.depths:
                case = Case(parts, drafter, depth)
                measure(plain, case, read_prompts(arguments.kind), rows, limits)
                line = line_of(case, plain, rows, tokens) | {"kind": arguments.kind}
                print(json.dumps(line), flush=True)
        if parts.runs_ahead:  # the next engine's turn to have what one of a process may have
            del parts, plain_parts, plain, case
            plain_parts = None
            gc.collect()


if __name__ == "__main__":
    main()
