"""A report: plots of runs, and a page of Markdown with their figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .plots import PLOTS
from .tables import page

PAGE = "results.md"

Record = Mapping[str, Any]


def read_records(path: Path) -> list[Record]:
    """Return the runs in a file of JSON lines; lines of other benchmarks are passed over.

    Raises ValueError, naming the line, for one that is not JSON.
    """
    records: list[Record] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if isinstance(record, dict) and record.get("benchmark") == "workload":
            records.append(record)
    return records


def write_report(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write the page and every plot that the runs have something for; return the files' paths.

    Raises ValueError if there is no run, ImportError without matplotlib.
    """
    if not records:
        raise ValueError("there is no run to report: no line has the benchmark 'workload'")
    import matplotlib as mpl

    mpl.use("agg")  # no display is needed
    made: dict[str, Path] = {}
    for plot in PLOTS:
        figure = plot.draw(records)
        if figure is not None:
            made[plot.title] = folder / plot.file
            figure.savefig(made[plot.title], dpi=120)
    text = page(records, {title: path.name for title, path in made.items()})
    (folder / PAGE).write_text(text, encoding="utf-8")
    return [folder / PAGE, *made.values()]
