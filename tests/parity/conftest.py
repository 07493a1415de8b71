"""The models whose every token is compared with mlx-lm's, loaded once."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from oracle import Oracle

from engine.build import Parts, build
from engine.loading import EMBEDDED

FOLDERS: dict[str, Path] = dict(EMBEDDED)
if Path(os.environ.get("OCTAVO_DENSE_MODEL", "/nowhere")).is_dir():
    FOLDERS["dense"] = Path(os.environ["OCTAVO_DENSE_MODEL"])


@pytest.fixture(params=FOLDERS)
def model_name(request: pytest.FixtureRequest) -> str:
    """The embedded models, and a dense one if OCTAVO_DENSE_MODEL names its folder."""
    return str(request.param)


@pytest.fixture(scope="session")
def oracle_of() -> Callable[[str], Oracle]:
    """Return a function from a model's name to its oracle."""
    return cache(lambda name: Oracle.load(FOLDERS[name]))


@pytest.fixture(scope="session")
def exact_parts() -> Callable[[str], Parts]:
    """Return a function from a model's name to the parts of an exact engine of 8 rows."""
    options = {"max_rows": 8, "num_blocks": 100, "max_context": 512, "exact": True, "check": True}
    return cache(lambda name: build(str(FOLDERS[name]), **options))
