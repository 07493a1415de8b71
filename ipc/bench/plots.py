"""The plots of a report. Each draws what the runs have, or nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.phases import PHASES

from .tables import users
from .variants import variants

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

MOST_TIMELINES = 12
BAR_HEIGHT = 0.32  # inches


@dataclass(frozen=True, slots=True)
class Plot:
    """A file of a report."""

    title: str
    file: str
    draw: Callable[[Sequence[Record]], "Figure | None"]


def throughput(records: Sequence[Record]) -> "Figure | None":
    """Tokens a second over the width of the batch: of runs with so many users at a time."""
    lines = _lines(records, "closed loop", lambda record: record["mean_decode_width"])
    if not lines:
        return None
    figure, [axes] = _figure()
    for label, some in lines.items():
        points = _points(some, lambda r: r["mean_decode_width"], "output_tokens_per_second")
        axes.plot(*points, marker="o", label=label)
    axes.set_xscale("log", base=2)
    _plain_ticks(axes)
    axes.set_xlabel("rows that decode in a round, on average")
    axes.set_ylabel("output tokens a second")
    return _finish(figure, axes)


def latency(records: Sequence[Record]) -> "Figure | None":
    """Time to first token, and per token, over users a second: of runs with random arrivals."""
    lines = _lines(records, "poisson", lambda record: record["arrivals"]["rate"])
    if not lines:
        return None
    figure, panels = _figure(columns=2)
    for axes, name, scale, title in (
        (panels[0], "time_to_first_token_s", 1.0, "time to first token, s"),
        (panels[1], "time_per_token_s", 1e3, "time per token, ms"),
    ):
        for number, (label, some) in enumerate(lines.items()):
            for part, style in (("median", "-"), ("p99", "--")):
                known = [record for record in some if record[name] is not None]
                x = [record["arrivals"]["rate"] for record in known]
                y = [scale * record[name][part] for record in known]
                text = f"{label}, {part}"
                axes.plot(x, y, style, marker="o", color=f"C{number % 10}", label=text)
        axes.set_xlabel("users a second")
        axes.set_ylabel(title)
        _finish(figure, axes)
    return figure


def acceptance(records: Sequence[Record]) -> "Figure | None":
    """The part of drafts that were accepted, by their position in the window."""
    drafting = [(label, r) for label, r in _labelled(records) if r["drafts"]]
    if not drafting:
        return None
    figure, [axes] = _figure()
    for label, record in drafting:
        drafts = record["drafts"]
        pairs = zip(drafts["accepted_by_position"], drafts["drafted_by_position"], strict=True)
        shares = [accepted / drafted for accepted, drafted in pairs if drafted]
        axes.plot(range(1, len(shares) + 1), shares, marker="o", label=label)
    axes.set_ylim(top=1.05)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position of the draft in its window")
    axes.set_ylabel("accepted, of those drafted")
    return _finish(figure, axes)


def pages(records: Sequence[Record]) -> "Figure | None":
    """Blocks that are held or cached, and rows, over time: a panel a run."""
    chosen = [one for one in _latest(records) if len(one[1]["timeline"]["seconds"]) > 1]
    chosen = chosen[:MOST_TIMELINES]
    if not chosen:
        return None
    columns = min(3, len(chosen))
    figure, panels = _figure(columns=columns, rows=-(-len(chosen) // columns), size=(4.2, 2.8))
    for number, (axes, (label, record)) in enumerate(zip(panels, chosen, strict=False)):
        line = record["timeline"]
        stack = (line["held_blocks"], line["cached_blocks"])
        axes.stackplot(line["seconds"], *stack, labels=("held", "cached"), alpha=0.6)
        axes.set_title(label, fontsize="small")
        axes.set_xlabel("seconds")
        axes.set_ylabel(f"blocks (of {line['total_blocks']:,})")
        rows = axes.twinx()
        rows.step(line["seconds"], line["rows"], color="black", linewidth=1, label="rows")
        rows.set_ylim(bottom=0)
        rows.set_ylabel("rows")
        if not number:
            handles = [*axes.get_legend_handles_labels()[0], *rows.get_lines()]
            rows.legend(handles=handles, fontsize="x-small")
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    return figure


def steps(records: Sequence[Record]) -> "Figure | None":
    """Where the time of a step goes: a bar a run."""
    chosen = [one for one in _latest(records) if sum(one[1]["step_split_s"].values())]
    if not chosen:
        return None
    figure, [axes] = _figure(size=(8, 1.4 + BAR_HEIGHT * len(chosen)))
    labels = [label for label, _ in chosen]
    left = [0.0] * len(chosen)
    for phase in (*PHASES, "other"):
        splits = [record["step_split_s"] for _, record in chosen]
        shares = [100 * split[phase] / sum(split.values()) for split in splits]
        axes.barh(range(len(chosen)), shares, left=left, label=phase)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(chosen)), labels, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time of steps")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.4, -0.75 / figure.get_figheight()))
    return figure


PLOTS = (
    Plot("Throughput by batch width", "throughput.png", throughput),
    Plot("Latency by load", "latency.png", latency),
    Plot("Acceptance by position", "acceptance.png", acceptance),
    Plot("Pages over time", "pages.png", pages),
    Plot("Where a step's time goes", "steps.png", steps),
)
"""All plots, in a report's order."""


def _labelled(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Each run with a name: its workload, how users came, and what else it was run with."""
    return [
        (", ".join(filter(None, (r["workload"], users(r["arrivals"]), told))), r)
        for r, told in zip(records, variants(records), strict=True)
    ]


def _latest(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """The last of all runs with the same name."""
    return list(dict(_labelled(records)).items())


def _lines(
    records: Sequence[Record], process: str, place: Callable[[Record], float | None]
) -> dict[str, list[Record]]:
    """Runs of one arrival process by workload and variant, in order of their place on the axis.

    A single point makes no line and is left out.
    """
    lines: dict[str, list[Record]] = {}
    for record, told in zip(records, variants(records), strict=True):
        if record["arrivals"]["process"] == process and place(record) is not None:
            label = ", ".join(filter(None, (record["workload"], told)))
            lines.setdefault(label, []).append(record)
    curves = {label: some for label, some in lines.items() if len({*map(place, some)}) > 1}
    return {label: sorted(some, key=lambda r: place(r) or 0.0) for label, some in curves.items()}


def _points(
    records: Iterable[Record], place: Callable[[Record], float], name: str
) -> tuple[list[float], list[float]]:
    known = [record for record in records if record[name] is not None]
    return [place(record) for record in known], [record[name] for record in known]


def _figure(
    columns: int = 1, rows: int = 1, size: tuple[float, float] = (6, 4)
) -> tuple["Figure", list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    return figure, list(panels.flat)


def _finish(figure: "Figure", axes: "Axes") -> "Figure":
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _plain_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import FormatStrFormatter

    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
