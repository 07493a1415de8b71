"""What a chain of kernels takes: few rows of bfloat16, and plain linear layers that fit."""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx import nn

from . import product


def is_few(x: mx.array) -> bool:
    """Whether ``x``, (..., depth), has so few rows that products of it are the kernel's."""
    return x.dtype == mx.bfloat16 and 0 < x.size <= product.MOST_ROWS * x.shape[-1]


def why_not(linears: Iterable[Any]) -> str | None:
    """Say why the kernel does not multiply by the weights of ``linears``; None if it does."""
    for linear in linears:
        if not isinstance(linear, nn.Linear):
            return f"a projection of kind {type(linear).__name__}"
        if "bias" in linear:
            return "a projection with a bias"
        if not product.takes(linear.weight):
            kind = str(linear.weight.dtype).removeprefix("mlx.core.")
            return f"a projection of {kind} weights {linear.weight.shape}"
    return None
