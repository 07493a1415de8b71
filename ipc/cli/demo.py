"""``octavo demo``: decodes the bundled prompts with the embedded model and shows how fast it is."""

import argparse
import importlib.resources
import json
import sys
import tempfile
from typing import Any

from .engine_options import add_engine_arguments, load_engine
from .stop_signals import stop_signals

NAME = "demo"
HELP = "decode about 50 bundled prompts with the embedded model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--show", type=int, default=3, metavar="N", help="how many answers to show")
    parser.add_argument(
        "--limit", type=int, default=None, metavar="N", help="decode only the first N prompts"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one line of JSON")
    add_engine_arguments(parser)


class KeptRecords:
    """An output that stays in memory."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any]) -> None:
        """Keep one record."""
        self.records.append(record)

    def close(self) -> None:
        """Nothing to let go of."""


def run(arguments: argparse.Namespace) -> int:
    """Decode, then show a few answers and the table."""
    from ..batch_job import BatchJob
    from ..batch_line import LineParser
    from ..engine_backend import EngineBackend
    from ..input_lines import InputLines
    from .progress import BatchProgress
    from .summary_table import print_summary

    prompts = read_prompts()[: arguments.limit]
    output = KeptRecords()
    backend = EngineBackend(load_engine(arguments))
    progress = BatchProgress(len(prompts))
    with tempfile.TemporaryFile() as file:
        file.write(b"\n".join(prompts))
        file.seek(0)
        job = BatchJob(
            lines=InputLines(file.fileno()),
            parser=LineParser(model=arguments.model),
            backend=backend,
            output=output,
            model=arguments.model,
            on_progress=progress.show,
        )
        with progress, stop_signals(job.stop):
            summary = job.run()
    for text in show_answers(prompts, output.records, arguments.show):
        print(text)
    print_summary(summary, as_json=arguments.json, to_stdout=True)
    if summary.signal is not None:
        return 128 + summary.signal
    if summary.failed:
        print(f"octavo demo: {summary.first_error}", file=sys.stderr)
    return 1 if summary.failed else 0


def read_prompts() -> list[bytes]:
    """Return the lines of the bundled file."""
    file = importlib.resources.files("engine.demo") / "prompts.jsonl"
    return file.read_bytes().splitlines()


def show_answers(prompts: list[bytes], records: list[dict[str, Any]], count: int) -> list[str]:
    """Return ``count`` questions with their answers, spread over the file, as texts to print."""
    answers = {record["custom_id"]: record for record in records if record["error"] is None}
    asked = [line for line in map(json.loads, prompts) if line["custom_id"] in answers]
    step = max(1, len(asked) // max(1, count))
    texts = []
    for line in asked[step // 2 :: step][:count]:
        question = line.get("prompt") or line["messages"][-1]["content"]
        question = question if len(question) <= 200 else "... " + question[-200:]
        answer = answers[line["custom_id"]]["choices"][0]["text"].strip()
        texts.append(f"[{line['custom_id']}] {question}\n  -> {answer}\n")
    return texts
