"""Products with few rows by kernels: what decoding a small batch mostly waits for.

Norm before, activation or residual after a product run in its launch, but the norm of more than 16
rows in one of its own. Rows come out the same, bitwise, however many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn

from ..quick_classes import exchange
from . import wide_product
from .device import on_device
from .product_form import PARTS, Form, quickest
from .source import Kernel

MOST_ROWS = 64
MOST_WEIGHTS = 4
FEWEST_WEIGHED = 17  # rows from which a norm's weight is multiplied in a launch of its own
DEPTH_STEP = 32 * PARTS  # the depth must be a multiple of it
COLUMN_STEP = 16


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """An RMSNorm of what is multiplied: ``weight`` (depth,), ``epsilon`` (1,) in float32."""

    weight: mx.array
    epsilon: mx.array


def norm_of(module: nn.RMSNorm) -> Norm:
    """Return what ``module`` computes, with an epsilon on the device."""
    epsilon = on_device(mx.array([module.eps], mx.float32))
    mx.eval(epsilon)  # or each step would make it anew
    return Norm(module.weight, epsilon)


def why_not(*weights: mx.array) -> str | None:
    """Say why the kernels do not multiply by ``weights`` side by side; None if they do."""
    depth = weights[0].shape[-1]
    for weight in weights:
        if weight.dtype != mx.bfloat16:
            return f"weights of {str(weight.dtype).removeprefix('mlx.core.')}"
        if weight.ndim != 2 or weight.shape[1] != depth or depth % DEPTH_STEP:
            return f"weights of shape {weight.shape}"
        if weight.shape[0] % COLUMN_STEP:
            return f"{weight.shape[0]} columns"
    return None if len(weights) <= MOST_WEIGHTS else f"{len(weights)} matrices of weights"


def takes(*weights: mx.array) -> bool:
    """Whether the kernels multiply by ``weights``, (columns, depth) each, side by side."""
    return why_not(*weights) is None


def multiply(
    x: mx.array,
    weights: mx.array | Sequence[mx.array],
    *,
    bias: mx.array | None = None,
    norm: Norm | None = None,
    residual: mx.array | None = None,
    swiglu: bool = False,
    form: Form | None = None,
) -> mx.array:
    """Return x @ w.T for each w of ``weights``, side by side, in bfloat16 with float32 sums.

    ``x`` is (..., depth) with at most MOST_ROWS rows in all; ``norm`` comes before the product;
    ``bias``, (all columns,), is added to the sums. ``swiglu`` returns silu(x @ gate.T) * (x @ up.T)
    of two weights. ``residual``, shaped like what is returned, is added to the rounded product.
    ``form`` is for those who compare forms.
    """
    matrices = [weights] if isinstance(weights, mx.array) else list(weights)
    rows = x.size // x.shape[-1]
    assert 0 < rows <= MOST_ROWS
    assert bias is None or not swiglu
    columns = matrices[0].shape[0] if swiglu else sum(matrix.shape[0] for matrix in matrices)
    num_tiles = columns // (8 if swiglu else 16)
    form = form or quickest(rows, num_tiles, x.shape[-1])
    none, factors = _constants()
    if norm is not None and rows >= FEWEST_WEIGHED:
        x, factors = _weigh(x, norm)
        norm = None
    inputs = [
        x,
        *matrices,
        *[none] * (MOST_WEIGHTS - len(matrices)),
        none if bias is None else bias,
        none if residual is None else residual,
        none if norm is None else norm.weight,
        _constants()[1] if norm is None else norm.epsilon,
        factors,
        none if not swiglu else _gated(),
    ]
    return form.kernel(norm is not None)(
        inputs, (form.blocks(num_tiles), 1, 1), [(*x.shape[:-1], columns)], [mx.bfloat16]
    )[0]


def _weigh(x: mx.array, norm: Norm) -> tuple[mx.array, mx.array]:
    """Return x times the weight of ``norm``, and the factors (rows,) for the products of it."""
    rows = x.size // x.shape[-1]
    weighed, factors = _weighing_kernel()(
        [x, norm.weight, norm.epsilon], (rows, 1, 1), [x.shape, (rows,)], [x.dtype, mx.float32]
    )
    return weighed, factors


@cache
def _weighing_kernel() -> Kernel:
    return Kernel(
        "weighed_rows",
        ("warp.cuh", "product_terms.cuh", "weighed_rows.cuh"),
        "weighed_rows<WARPS>(x, norm, *epsilon, out, factors, x_shape[x_ndim - 1]);",
        ("x", "norm", "epsilon"),
        ("out", "factors"),
        template=[("WARPS", PARTS)],
        threads=32 * PARTS,
    )


@cache
def _constants() -> tuple[mx.array, mx.array]:
    """What stands for an input that there is none of: of bfloat16, of float32."""
    made = mx.zeros((1,), mx.bfloat16), mx.zeros((1,), mx.float32)
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made


@cache
def _gated() -> mx.array:
    made = mx.zeros((2,), mx.bfloat16)
    mx.eval(made)
    return made


def is_few(x: mx.array, most: int = MOST_ROWS) -> bool:
    """Whether ``x``, (..., depth), is bfloat16 and has at most so many rows."""
    return x.dtype == mx.bfloat16 and 0 < x.size <= most * x.shape[-1]


class SkinnyLinear(nn.Linear):
    """A Linear whose products with few rows are the kernel's."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        if not is_few(x):
            out: mx.array = super().__call__(x)
            return out
        return _multiply_alone(x, self["weight"], self.get("bias", None))


class SkinnyEmbedding(nn.Embedding):
    """An Embedding that is the output layer too."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        if not is_few(x):
            out: mx.array = super().as_linear(x)
            return out
        return _multiply_alone(x, self["weight"])


def _multiply_alone(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Return x @ weight.T (+ bias) by the quickest kernel of all: outside of exact mode."""
    if bias is None and wide_product.takes(weight):
        return wide_product.multiply(x, weight)
    return multiply(x, weight, bias=bias)


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def bind(model: Any) -> int:
    """Give the products of ``model`` that the kernel takes their class; return how many.

    Only these instances change.
    """
    return len(exchange(model, SKINNY, takes_weight_of))


def takes_weight_of(module: Any) -> bool:
    """Whether the kernels multiply by the weight of ``module``."""
    return takes(module["weight"])
