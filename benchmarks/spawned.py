"""A Python process beside a benchmark, for as long as that takes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def spawned(*words: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Python with these words; ``options`` are Popen's. It is killed in the end."""
    process = subprocess.Popen([sys.executable, *words], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
