"""Whose turn it is with the BLAS, where two sides share a process.

This engine divides products itself and leaves the BLAS one thread; mlx-lm is to have as many as
were found to pay when the BLAS was loaded.
"""

from engine import blas


def ours() -> None:
    """This engine's turn."""
    used = blas.current()
    if used is not None and used.name == "openblas":
        blas.set_threads(1)


def mlx_lm() -> None:
    """mlx-lm's turn."""
    used = blas.current()
    if used is not None and used.threads:
        blas.set_threads(used.threads)
