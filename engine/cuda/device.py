"""What is known of the device, and arrays that kernels read in its own memory."""

import ctypes
from functools import cache
from typing import Any

import mlx.core as mx

MULTIPROCESSORS = 132  # of an H200: how much is to be dealt out
# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and _COMPUTE_CAPABILITY_MAJOR, _MINOR
ATTRIBUTES = (16, 75, 76)
COMPUTE_CAPABILITY = (9, 0)  # wgmma is of sm_90a alone
FEWEST = 4  # numbers: MLX keeps arrays of up to 8 bytes where the host does


def is_default() -> bool:
    """Whether MLX computes on an NVIDIA GPU unless it is told otherwise."""
    return mx.default_device() == mx.Device(mx.gpu) and mx.cuda.is_available()


def on_device(array: mx.array) -> mx.array:
    """Return ``array`` as the device's own copy, one-dimensional and at least four numbers long.

    What Python or numpy made lies in the host's memory: each block of each launch would read it
    over the bus, which takes longer than most of what a block does.
    """
    flat = array.reshape(-1)
    if flat.size < FEWEST:
        flat = mx.pad(flat, (0, FEWEST - flat.size))
    return flat + mx.zeros((), array.dtype)


@cache
def driver() -> Any:
    """Return NVIDIA's driver, for what MLX does not tell or do; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def count_multiprocessors() -> int:
    """Return how many an sm_90a device has; 0 of other devices, or where that cannot be told."""
    library = driver()
    if library is None:
        return 0
    values = []
    for attribute in ATTRIBUTES:
        value = ctypes.c_int()
        if library.cuInit(0) or library.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
            return 0
        values.append(value.value)
    return values[0] if tuple(values[1:]) == COMPUTE_CAPABILITY else 0
