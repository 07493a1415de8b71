"""The families that run ahead in these tests: attention alone, gated deltas, Mamba."""

from collections.abc import Iterator

import pytest
from ahead_engines import parts_of

FAMILIES = ["qwen3", "qwen3_5", "jamba"]


@pytest.fixture(params=FAMILIES)
def model_type(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    parts_of(request.param).executor.in_order = False
