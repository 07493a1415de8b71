"""Weights in huge pages, where Linux has them to give.

A step reads all weights once. In pages of 4 KiB the processor looks up an address for every
kilobyte or so that it multiplies, and does not fetch ahead beyond a page's end.
"""

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

SIZE = 1 << 21  # bytes of a huge page on x86-64, and of 4 KiB pages' on ARM
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise, in linux/mman.h
_CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def are_allowed(choice: str) -> bool:
    """Whether the system's ``choice``, as the kernel writes it down, leaves them to programs."""
    return "[never]" not in choice


def move(arrays: Iterable[mx.array]) -> int:
    """Move large ``arrays``, evaluated and of a NumPy type, to huge pages; return how many bytes.

    Values and addresses stay. It takes as long as copying them; kernels before 6.1 do it later, or
    not at all, and 0 is returned there, as on other systems.
    """
    madvise = _madvise()
    moved = 0
    for array in arrays:
        if madvise is None or array.nbytes < SIZE:
            continue
        place = np.array(array, copy=False).ctypes.data
        first, end = place // SIZE * SIZE, -(-(place + array.nbytes) // SIZE) * SIZE
        madvise(first, end - first, _HUGEPAGE)
        if madvise(first, end - first, _COLLAPSE) == 0:
            moved += array.nbytes
    return moved


@cache
def _madvise() -> Any:
    """The C library's function; None where there is none, or nobody wants huge pages."""
    try:
        found = ctypes.CDLL(None).madvise
        if not are_allowed(_CHOICE.read_text()):
            return None
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
