"""What tells the runs of a report apart: a short name for each, of what differs between them."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

_FACTS = ("model", "options", "versions", "machine")
_ENGINE = ("dtype", "device_name", "blas", "backend", "exact", "drafter", "speculate", "max_rows")
_NEVER = {"memory_bytes"}


def variants(records: Sequence[Record]) -> list[str]:
    """Return for each run what it was run with, as far as not all were: "" if all were alike."""
    facts = [_facts(record) for record in records]
    names = list(dict.fromkeys(name for each in facts for name in each))
    differing = [name for name in names if len({str(each.get(name)) for each in facts}) > 1]
    return [
        ", ".join(f"{name} {each[name]}" for name in differing if each.get(name) is not None)
        for each in facts
    ]


def _facts(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _FACTS:
        value = record.get(name)
        found |= value if isinstance(value, Mapping) else {name: value}
    engine = record.get("engine", {})
    found |= {name: engine[name] for name in _ENGINE if engine.get(name) is not None}
    return {name: value for name, value in found.items() if name not in _NEVER}
