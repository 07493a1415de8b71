"""What a chain of kernels takes: few rows of bfloat16, and plain linear layers that fit."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from . import product

MOST_ROWS = 256  # beyond them a library's products gain more than its launches cost


def is_few(x: mx.array) -> bool:
    """Whether ``x``, (..., depth), has so few rows that a chain of kernels is to take it."""
    return product.is_few(x, MOST_ROWS)


def multiply(
    x: mx.array,
    weights: mx.array | Sequence[mx.array],
    *,
    bias: mx.array | None = None,
    norm: product.Norm | None = None,
    residual: mx.array | None = None,
    swiglu: bool = False,
) -> mx.array:
    """Return what ``product.multiply`` does of ``x``, (..., depth), with any number of rows.

    They are taken in turns, as many as a kernel takes: a row comes out the same, bitwise, whatever
    stands beside it.
    """
    depth, most = x.shape[-1], product.MOST_ROWS
    if x.size <= most * depth:
        return product.multiply(x, weights, bias=bias, norm=norm, residual=residual, swiglu=swiglu)
    flat = x.reshape(-1, depth)
    beside = None if residual is None else residual.reshape(-1, residual.shape[-1])
    outputs = [
        product.multiply(
            flat[first : first + most],
            weights,
            bias=bias,
            norm=norm,
            residual=None if beside is None else beside[first : first + most],
            swiglu=swiglu,
        )
        for first in range(0, flat.shape[0], most)
    ]
    return mx.concatenate(outputs).reshape(*x.shape[:-1], outputs[0].shape[-1])


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
