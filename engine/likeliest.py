"""The likeliest tokens: found on the host where logits lie in its memory anyway."""

import mlx.core as mx
import numpy as np

from .cuda import argmax, device

HOST_TYPES = (mx.float32, mx.float16)  # those that numpy knows


def has_fast_host(logits: mx.array) -> bool:
    """Whether numpy finds the argmax of ``logits`` without a copy: 10 times faster than MLX."""
    return mx.default_device() == mx.Device(mx.cpu) and logits.dtype in HOST_TYPES


def likeliest(logits: mx.array) -> list[int]:
    """Return the id of the largest of each row of ``logits`` [N, V], the lowest among equals."""
    ids: list[int] = np.array(logits, copy=False).argmax(axis=-1).tolist()
    return ids


def likeliest_on_device(logits: mx.array) -> mx.array:
    """Return the id of the largest of each row of ``logits`` [N, V], uint32 [N], as an array.

    The lowest among equals.
    """
    if device.is_default() and argmax.takes(logits):
        return argmax.argmax(logits)
    return mx.argmax(logits, axis=-1)
