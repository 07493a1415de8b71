import argparse
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ipc.bench import suite
from ipc.bench.arrivals import Arrivals
from ipc.bench.workloads import WORKLOADS
from ipc.cli import bench, main


def parse(*words: str) -> argparse.Namespace:
    return main.make_parser(bench).parse_args(words)


def told(runs: Generator[suite.Planned, dict[str, Any], None], rate: float) -> list[str]:
    """What is planned, when every run does ``rate`` users a second."""
    plans, planned = [], next(runs)
    try:
        while True:
            plans.append(f"{planned.workload.name}, {planned.arrivals}")
            planned = runs.send({"sessions_per_second": rate})
    except StopIteration:
        return plans


def test_nothing_named_means_all_workloads_then_widths_then_loads() -> None:
    assert told(bench.planned(parse(), max_rows=6), rate=8.0) == [
        *(f"{name}, all at once" for name in WORKLOADS if name != "single"),
        "single, 1 at a time",
        *(f"offline, {width} at a time" for width in (1, 2, 4, 6)),
        *(f"shared-prompt, {rate} users a second" for rate in (2, 4, 6, 8)),
    ]


def test_named_workloads_run_under_each_arrival_process_as_often_as_asked() -> None:
    arguments = parse("json", "chat", "--concurrency", "1,4", "--repeat", "2")

    once = [f"{name}, {width} at a time" for name in ("json", "chat") for width in (1, 4)]
    assert told(bench.planned(arguments, max_rows=6), rate=8.0) == once * 2


def test_arrivals_alone_mean_every_workload_under_them() -> None:
    plans = told(bench.planned(parse("--rate", "0.5"), max_rows=6), rate=8.0)

    assert plans == [f"{name}, 0.5 users a second" for name in WORKLOADS]


def test_a_seed_reaches_the_random_arrivals() -> None:
    arguments = parse("json", "--rate", "1,2", "--seed", "7")

    assert list(bench.arrival_processes(arguments)) == [
        Arrivals(rate=1.0, seed=7),
        Arrivals(rate=2.0, seed=7),
    ]


def test_the_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(WORKLOADS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jsno"], "there is no workload 'jsno'; there are offline,"),
        (["--rate", "0"], "'0' must be numbers above 0, such as 0.5,1,2"),
        (["--rate", "1,x"], "'1,x' must be numbers above 0"),
        (["--concurrency", "1,0"], "'0' must be a whole number from 1"),
        (["--rate", "1", "--concurrency", "1"], "not allowed with argument"),
        (["--sessions", "none"], "'none' must be a whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_report_without_matplotlib_is_refused_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert main.main(["bench", "json", "--report", str(tmp_path / "report")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", "json", "-o", str(tmp_path / "no" / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_the_demo_model_is_measured_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["chat", "json", "--sessions", "2", "--tokens", "6", "--max-rows", "2"]
    engine = ["--max-context", "512", "--speculate", "1"]

    assert main.main(["bench", *words, *engine, "--report", str(tmp_path)]) == 0

    chat, constrained = map(json.loads, (tmp_path / bench.RUNS_FILE).read_text().splitlines())
    assert (chat["sessions"], chat["requests"], chat["rounds"] > 0) == (2, 8, True)
    assert chat["cached_tokens"] > 0  # later turns find what earlier ones computed
    assert constrained["cached_tokens"] == 0
    assert chat["output_tokens"] <= 8 * 6
    assert chat["drafts"]["drafted_by_position"][0] >= chat["drafts"]["accepted_by_position"][0]
    assert chat["step_split_s"]["device"] > 0
    assert chat["model"] == "demo"
    assert chat["options"] == {"max_rows": 2, "max_context": 512, "speculate": 1}
    assert (tmp_path / "results.md").exists()
    assert (tmp_path / "acceptance.png").exists()
    captured = capsys.readouterr()
    assert "chat, all at once: " in captured.err
    assert captured.out == ""


def test_a_prompt_that_does_not_fit_names_its_workload(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["bench", "shared-prompt", "--max-context", "64", "--max-rows", "1"]) == 1
    assert "workload shared-prompt: " in capsys.readouterr().err
