"""Whose turn it is with the BLAS, where two sides share a process."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine import blas


@contextmanager
def all_threads() -> Iterator[None]:
    """Let the BLAS use as many threads as were found to pay when it was loaded: mlx-lm's turn.

    This engine, whose turn it is otherwise, may divide products itself and leave the BLAS one.
    """
    used = blas.current()
    if used is None or used.name != "openblas" or not used.threads:
        yield
        return
    before = blas.set_threads(used.threads)
    try:
        yield
    finally:
        blas.set_threads(before or 1)
