"""Markdown of a report: what was run on what, and the figures of each run."""

from collections.abc import Mapping, Sequence
from typing import Any

from .variants import variants

Record = Mapping[str, Any]

COLUMNS = (
    *("workload", "users", "requests", "output tok/s", "prompt tok/s", "cached", "first token, s"),
    *(
        "per token, ms",
        "stall, ms",
        "queue, s",
        "rows",
        "drafts accepted",
        "preempted",
        "not the device",
    ),
)


def page(records: Sequence[Record], plots: Mapping[str, str]) -> str:
    """Return the page; ``plots`` are files by title."""
    parts = ["# What `octavo bench` measured", *_conditions(records)]
    told = variants(records)
    for variant in dict.fromkeys(told):
        if variant:
            parts.append(f"## {variant}")
        some = [record for record, own in zip(records, told, strict=True) if own == variant]
        parts.append(table(some))
    parts.append(
        "Times are median / 99th percentile; with fewer than a hundred requests the second is the "
        "largest. They count from when a user wanted to ask. *stall*: the longest wait "
        "between two steps that gave one request tokens. *cached*: prompt tokens that shared "
        "prefixes spared. *rows*: sequences that decoded in a round, on average. *not the device*: "
        "the part of a step that was neither waiting for the model nor drafting."
    )
    parts += [f"## {title}\n\n![{title}]({file})" for title, file in plots.items()]
    return "\n\n".join(parts) + "\n"


def table(records: Sequence[Record]) -> str:
    """Return one line of figures a run."""
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for record in records:
        lines.append(_cells(record))
        lines += [_group_cells(name, group) for name, group in record["groups"].items()]
    return "\n".join(map(_line, lines))


def users(arrivals: Mapping[str, Any]) -> str:
    """Return how users came, in a few words."""
    if arrivals["process"] == "poisson":
        return f"{arrivals['rate']:g} a second"
    if arrivals["process"] == "closed loop":
        return f"{arrivals['concurrency']} at a time"
    return "all at once"


def not_device(record: Record) -> float | None:
    """Return the share of steps that was spent neither on the device nor on drafting."""
    split = record["step_split_s"]
    whole = sum(split.values())
    return (whole - split["device"] - split["draft"]) / whole if whole else None


def _conditions(records: Sequence[Record]) -> list[str]:
    """One line a fact: the model, the machine, the versions, the commands, how busy it was."""
    lines = []
    for title, of in (
        ("Model", lambda r: f"{r['model']}, {r['engine'].get('dtype')}"),
        ("Device", lambda r: _device(r["engine"])),
        ("Machine", lambda r: _machine(r["machine"])),
        ("Versions", lambda r: ", ".join(f"{n} {v}" for n, v in r["versions"].items())),
        ("Command", lambda r: f"`{r['command']}`"),
    ):
        lines += [f"- {title}: {one}" for one in dict.fromkeys(map(of, records))]
    dates = sorted(record["date"] for record in records)
    lines.append(f"- Date: {dates[0]} to {dates[-1]}")
    busy = [record["load_average"]["before"] for record in records]
    known = [load for load in busy if load is not None]
    if known:
        lines.append(
            f"- Load average before a run: {min(known):g} to {max(known):g} "
            "(figures of a machine that others use are not worth citing)"
        )
    return ["\n".join(lines)]


def _device(facts: Record) -> str:
    name = facts.get("device_name") or facts.get("device")
    return f"{name}, BLAS {facts['blas']}" if facts.get("blas") else str(name)


def _machine(facts: Mapping[str, Any]) -> str:
    memory = facts.get("memory_bytes")
    size = f", {memory / 2**30:.0f} GiB" if memory else ""
    return f"{facts.get('processor')}, {facts.get('cores')} cores{size}, {facts.get('system')}"


def _cells(record: Record) -> list[str]:
    drafts = record["drafts"]
    off_device = not_device(record)
    prompt = record["prompt_tokens"]
    return [
        record["workload"],
        users(record["arrivals"]),
        str(record["requests"]),
        _figure(record["output_tokens_per_second"]),
        _figure(record["prompt_tokens_per_second"]),
        f"{100 * record['cached_tokens'] / prompt:.0f} %" if prompt else "-",
        *_time_cells(record),
        _figure(record["mean_decode_width"]),
        f"{100 * drafts['accepted'] / drafts['drafted']:.0f} %" if drafts else "-",
        str(record["preemptions"]),
        "-" if off_device is None else f"{100 * off_device:.0f} %",
    ]


def _group_cells(name: str, group: Record) -> list[str]:
    """A line for some of a run's requests: their times alone."""
    before, after = ["", "", ""], ["", "", "", ""]
    return [f"- {name}", "", str(group["requests"]), *before, *_time_cells(group), *after]


def _time_cells(record: Record) -> list[str]:
    gaps = record["gap_s"]
    return [
        _times(record["time_to_first_token_s"]),
        _times(record["time_per_token_s"], 1e3),
        "-" if gaps is None else _figure(1e3 * gaps["max"]),
        _times(record["queue_s"]),
    ]


def _times(spread: Mapping[str, float] | None, scale: float = 1.0) -> str:
    if spread is None:
        return "-"
    return f"{_figure(scale * spread['median'])} / {_figure(scale * spread['p99'])}"


def _figure(value: float | None) -> str:
    """Three digits that count; whole numbers whole."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
