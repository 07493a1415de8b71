"""Every scheduler test ends with a check of all invariants of all schedulers it has made."""

from collections.abc import Iterator

import pytest
from world import WORLDS


@pytest.fixture(autouse=True)
def _every_world_balances() -> Iterator[None]:
    WORLDS.clear()
    yield
    for world in WORLDS:
        world.verify_all()
    WORLDS.clear()
