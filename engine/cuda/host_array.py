"""Memory of the host that the device reads and writes in place, over the bus.

What MLX makes of numpy's arrays, and what is read of the device's, moves between the two memories
page by page: each time some 20 to 150 us on an H200, for a few hundred bytes. These pages stay.
"""

import ctypes
import weakref

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from .device import driver

PAGE = 16384  # numbers: whole pages of any size up to 64 KiB, which nothing else lies in
# CUmem_advise and CUmemLocationType
PREFER, LET_ACCESS = 3, 5
PREFER_NO_MORE, LET_ACCESS_NO_MORE = 4, 6
DEVICE, HOST = 1, 2


class HostArray:
    """At least ``size`` numbers, int32, that lie in the host's memory for good."""

    def __init__(self, size: int) -> None:
        self.array = mx.array(np.zeros((rounded(size),), np.int32))
        """For the device, (rounded(size),). Whoever lets it read sees to it that the host does not
        write meanwhile."""
        mx.eval(self.array)
        self.numbers: Int32s = np.array(self.array, copy=False)
        """The same, for the host."""
        place = self.numbers.ctypes.data, self.numbers.nbytes
        _advise(*place, PREFER, LET_ACCESS)
        # MLX keeps the memory, and gives it to an array of the device's next
        weakref.finalize(self, _advise, *place, PREFER_NO_MORE, LET_ACCESS_NO_MORE).atexit = False


def rounded(size: int) -> int:
    """How many numbers an array of ``size`` has."""
    return -(-max(size, 1) // PAGE) * PAGE


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


def _advise(at: int, size: int, preference: int, access: int) -> None:
    """Say where ``size`` bytes are to stay and who may map them, if the driver heeds that."""
    library = driver()
    if library is None or not hasattr(library, "cuMemAdvise_v2"):
        return
    for advice, where in ((preference, _Location(HOST, 0)), (access, _Location(DEVICE, 0))):
        library.cuMemAdvise_v2(ctypes.c_uint64(at), ctypes.c_size_t(size), advice, where)
