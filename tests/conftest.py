"""Fixtures that more than one test folder uses."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.loading import EMBEDDED


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies an embedded model to a folder the test may spoil."""

    def copy(name: str) -> Path:
        folder = tmp_path / f"copy-of-{name}"
        shutil.copytree(EMBEDDED[name], folder)
        return folder

    return copy
