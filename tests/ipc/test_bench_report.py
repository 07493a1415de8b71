import json
from pathlib import Path
from typing import Any

import pytest
from bench_toys import Clock, ToyEngine

from ipc.bench.arrivals import Arrivals
from ipc.bench.bench import Bench
from ipc.bench.plots import PLOTS, acceptance, latency, pages, steps, throughput
from ipc.bench.report import read_records, write_report
from ipc.bench.tables import COLUMNS, not_device, page, table
from ipc.bench.variants import variants
from ipc.bench.workloads import WORKLOADS

PNG = b"\x89PNG\r\n\x1a\n"


def record(workload: str = "json", arrivals: Arrivals | None = None, **options: Any) -> Any:
    """A toy's record as it is read back from its line."""
    engine = ToyEngine(Clock(), rows=options.get("max_rows", 2))
    bench = Bench(engine, options=options, clock=engine.clock, sleep=engine.clock.sleep)
    arrivals = arrivals or Arrivals()
    return json.loads(json.dumps(bench.run(WORKLOADS[workload], arrivals, num_sessions=4)))


def swept() -> list[Any]:
    widths = [record("offline", Arrivals(concurrency=width), max_rows=4) for width in (4, 1, 2)]
    return widths + [record("json", Arrivals(rate=rate), max_rows=4) for rate in (0.5, 0.1)]


def test_a_report_is_a_page_and_every_plot_that_there_is_something_for(tmp_path: Path) -> None:
    paths = write_report(swept(), tmp_path)

    assert [path.name for path in paths] == ["results.md", *(plot.file for plot in PLOTS)]
    for path in paths[1:]:
        assert path.read_bytes().startswith(PNG)
        assert f"({path.name})" in paths[0].read_text()


def test_a_single_run_without_drafts_makes_no_curves_and_no_acceptance(tmp_path: Path) -> None:
    alone = {**record(), "drafts": None}

    paths = write_report([alone], tmp_path)

    assert [path.name for path in paths] == ["results.md", "pages.png", "steps.png"]
    assert throughput([alone]) is None
    assert latency([alone]) is None
    assert latency([record("json", Arrivals(rate=0.5))]) is None
    assert acceptance([alone]) is None


def points(axes: Any) -> dict[str, list[list[float]]]:
    """The points of each line of a plot."""
    return {line.get_label(): [list(xy) for xy in line.get_xydata()] for line in axes.get_lines()}


def test_throughput_is_plotted_over_the_rows_that_really_decoded() -> None:
    runs = [record("offline", Arrivals(concurrency=width), max_rows=4) for width in (4, 1, 2)]
    figure = throughput(runs)
    assert figure is not None

    expected = [[run["mean_decode_width"], run["output_tokens_per_second"]] for run in runs]
    assert points(figure.axes[0]) == {"offline": sorted(expected)}
    assert len({width for width, _ in expected}) == 3


def test_latency_is_plotted_over_the_load_as_median_and_99th_percentile() -> None:
    slow, fast = (record("json", Arrivals(rate=rate)) for rate in (0.1, 0.5))
    figure = latency([fast, slow])
    assert figure is not None

    first = [each["time_to_first_token_s"] for each in (slow, fast)]
    assert points(figure.axes[0]) == {
        f"json, {part}": [[0.1, first[0][part]], [0.5, first[1][part]]]
        for part in ("median", "p99")
    }


def test_acceptance_is_a_share_of_what_was_drafted_at_that_position() -> None:
    figure = acceptance([record()])
    assert figure is not None

    [line] = points(figure.axes[0]).values()
    assert line == [[1, 0.75], [2, 0.5]]


def test_a_bar_of_the_split_is_a_hundred_percent_of_the_steps() -> None:
    figure = steps([record()])
    assert figure is not None

    widths = {bars.get_label(): bars.patches[0].get_width() for bars in figure.axes[0].containers}
    assert sum(widths.values()) == pytest.approx(100)
    assert {name: width for name, width in widths.items() if width} == {
        "plan": 25.0,
        "device": 50.0,
        "other": 25.0,
    }


def test_pages_over_time_have_a_panel_for_the_last_run_of_each_name() -> None:
    figure = pages([record(), record(), record("single")])
    assert figure is not None

    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        "json, all at once",
        "single, all at once",
    ]


def test_runs_are_told_apart_by_what_differs_between_them() -> None:
    assert variants([record(), record()]) == ["", ""]
    assert variants([record(max_rows=2), record(max_rows=4)]) == ["max_rows 2", "max_rows 4"]
    assert variants([record(), record(speculate=3)]) == ["", "speculate 3"]


def test_the_table_has_a_line_for_each_run_and_for_each_group_of_its_requests() -> None:
    lines = table([record(), record("long-arrivals")]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    assert cells[0] == list(COLUMNS)
    assert {len(line) for line in cells} == {len(COLUMNS)}
    assert [line[0] for line in cells[2:]] == [
        *("json", "long-arrivals", "- decoding", "- long prompt")
    ]
    assert cells[2][1:3] == ["all at once", "4"]
    assert cells[2][-1] == "50 %"


def test_what_is_not_the_device_leaves_drafting_out_as_well() -> None:
    split = {"plan": 1.0, "draft": 2.0, "device": 6.0, "other": 1.0}

    assert not_device({"step_split_s": split}) == pytest.approx(0.2)
    assert not_device({"step_split_s": dict.fromkeys(split, 0.0)}) is None


def test_the_page_says_on_what_the_figures_were_measured() -> None:
    text = page([record()], {})

    assert "- Model: toy, None" in text
    assert "BLAS abacus (1 thread)" in text
    assert "- Versions: python" in text
    assert "Load average" in text


def test_lines_of_other_benchmarks_are_passed_over_and_broken_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"benchmark": "plan"}\n[]\n{"benchmark": "workload", "seconds": 1}\n')
    assert read_records(path) == [{"benchmark": "workload", "seconds": 1}]

    path.write_text("{}\n{")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2: "):
        read_records(path)


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run to report"):
        write_report([], tmp_path)
