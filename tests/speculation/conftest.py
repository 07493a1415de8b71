"""The demo over each drafter, loaded once: exact, with room for 8 drafts a row."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest

from engine.build import Parts, build
from engine.engine import Engine
from scheduler.sequence import Sequence

DRAFTERS: dict[str, dict[str, Any]] = {
    "plain": {"speculate": "off"},
    "mtp": {"speculate": 8, "drafter": "mtp"},
    "peer": {"speculate": 8, "drafter": "peer", "draft_model": "demo-draft"},
    "lookup": {"speculate": 8, "drafter": "lookup"},
}


@dataclass(frozen=True)
class DepthsByRequest(Parts):
    """Parts of an engine whose requests each have a depth of their own."""

    by_request: dict[str, int]

    def make_depth_policy(self) -> Any:
        return self

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> list[int]:
        return [self.by_request.get(one.request.request_id, 0) for one in sequences]


@pytest.fixture(scope="session")
def demo_parts() -> Callable[[str], Parts]:
    """Return a function from a drafter's name to the parts of an exact engine of the demo."""
    options = {"max_rows": 8, "num_blocks": 160, "max_context": 512, "exact": True, "check": True}
    return cache(lambda drafter: build("demo", **options, **DRAFTERS[drafter]))


@pytest.fixture(scope="session")
def demo_engine(demo_parts: Callable[[str], Parts]) -> Callable[..., Engine]:
    """Return a function that makes an engine with a drafter, and depths by request id."""

    def make(drafter: str, depths: dict[str, int] | None = None) -> Engine:
        parts = demo_parts(drafter)
        values = {field.name: getattr(parts, field.name) for field in fields(parts)}
        return Engine(DepthsByRequest(**values, by_request=depths or {}))

    return make
