"""``octavo inspect``: what loading a model gives on this machine, without decoding anything."""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .engine_options import add_engine_arguments, load_engine

NAME = "inspect"
HELP = "load a model and print its layers, their methods, memory, device and BLAS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_engine_arguments(parser)
    parser.add_argument(
        "named", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help="the same as --model"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what the engine says about itself."""
    arguments.model = getattr(arguments, "named", arguments.model)
    described = load_engine(arguments).describe()
    if arguments.json:
        print(json.dumps(described, default=str))
    else:
        for line in lines_of(described):
            print(line)
    return 0


def lines_of(described: Mapping[str, Any]) -> list[str]:
    """Return one line a fact, aligned; layers of a kind that follow each other share a line."""
    facts = {name: value for name, value in described.items() if name != "layers"}
    for pool, each in (("blocks", "bytes_per_block"), ("slots", "bytes_per_slot")):
        if facts.get(pool) and facts.get(each):
            facts[f"memory in {pool}"] = facts[pool] * facts[each]
    width = max(map(len, facts))
    lines = [
        f"{name.replace('_', ' '):<{width}}  {shown(name, value)}" for name, value in facts.items()
    ]
    return [*lines, "layers", *(f"  {line}" for line in layer_lines(described.get("layers", ())))]


def layer_lines(kinds: Sequence[str]) -> list[str]:
    """Return ``first-last  kind`` for every run of layers of one kind."""
    lines = []
    for kind, run_ in groupby(enumerate(kinds), key=lambda numbered: numbered[1]):
        numbers = [number for number, _kind in run_]
        first, last = numbers[0], numbers[-1]
        name = str(first) if first == last else f"{first}-{last}"
        lines.append(f"{name:<7} {kind}")
    return lines


def shown(name: str, value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and ("bytes" in name or "memory" in name):
        return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else f"{value / 2**10:,.1f} KiB"
    return f"{value:,}" if isinstance(value, int) else str(value)
