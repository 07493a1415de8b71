"""Freed arrays stay with the process, where the next step takes them again.

MLX's CPU build allocates every result with malloc. glibc maps the largest one by one, and gives
back what is free at the heap's end: whatever it gives back, the kernel clears again, page by page,
when the next step asks for it.
"""

import ctypes
import os
from collections.abc import Mapping
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt, in malloc.h
_KEPT = 1 << 30  # bytes at the heap's end that stay; larger arrays are mapped as before
_OLD_LIMIT = 1 << 25  # what earlier versions of glibc take as threshold
_GROWS_BY = 1 << 26
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def is_chosen(environment: Mapping[str, str]) -> bool:
    """Whether somebody has set any of this by glibc's own variables."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name in environment for name in _VARIABLES)


@cache
def keep_freed() -> bool:
    """Let glibc's malloc keep what is freed, once a process; False where that is not to be had."""
    if is_chosen(os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018 - others' mallopt means other things
    except (AttributeError, OSError, TypeError):
        return False
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _GROWS_BY)
    return bool(mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _OLD_LIMIT))
