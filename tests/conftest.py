"""Fixtures that more than one test folder uses, and the BLAS that the suite runs on."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# exact mode needs rows that do not depend on the batch; slow, but the tests' models are small
os.environ.setdefault("OCTAVO_BLAS", "reference")

from engine.loading import EMBEDDED  # noqa: E402  # the BLAS is chosen as engine is imported


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies an embedded model to a folder the test may spoil."""

    def copy(name: str) -> Path:
        folder = tmp_path / f"copy-of-{name}"
        shutil.copytree(EMBEDDED[name], folder)
        return folder

    return copy
