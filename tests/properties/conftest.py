"""Lets these tests use the toy engine of the scheduler's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scheduler"))
