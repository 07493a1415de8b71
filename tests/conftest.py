"""Fixtures that more than one test folder uses, and the BLAS that the suite runs on."""

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# exact mode needs rows that do not depend on the batch; without this one, the wheel's own is used
os.environ.setdefault("OCTAVO_BLAS", "exact")

from engine.loading import EMBEDDED  # the BLAS is chosen as engine is imported


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    import mlx.core as mx

    if not mx.is_available(mx.gpu):
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that skips without a skipif of its own: what it was to show stays unknown."""
    report = yield
    if report.skipped and not item.get_closest_marker("skipif"):
        report.outcome = "failed"
    return report


@pytest.fixture
def copy_model(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies an embedded model to a folder the test may spoil."""

    def copy(name: str) -> Path:
        folder = tmp_path / f"copy-of-{name}"
        shutil.copytree(EMBEDDED[name], folder)
        return folder

    return copy
