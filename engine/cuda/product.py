"""Products with few rows by kernels: what decoding a small batch mostly waits for.

Norm before, activation or residual after a product run in its launch. Rows come out the same,
bitwise, however many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn

from .product_terms import INPUTS, PRODUCT
from .source import Kernel, Template

MOST_ROWS = 64
MOST_WEIGHTS = 4
PARTS = 8  # of the depth, a warp's or a block's each
DEPTH_STEP = 32 * PARTS  # the depth must be a multiple of it
COLUMN_STEP = 16
MULTIPROCESSORS = 132  # of an H200; results do not depend on it
MOST_SHARED = 227 * 1024  # bytes that a block may have
MOST_EIGHTS = 512  # columns of a block, by eights
BODIES = {
    "skinny_product": "skinny_product<ROW_TILES, COLUMN_TILES, AHEAD, NORM>(product, num_tiles);",
    "shared_product": """
  extern __shared__ __align__(128) unsigned char shared[];
  SharedProduct<ROW_TILES, COLUMN_TILES, AHEAD, STAGES, NORM, TRIAL>(product, num_tiles)
      .run(shared);
""",
    "ring_product": """
  extern __shared__ __align__(128) unsigned char shared[];
  RingProduct<ROW_TILES, COLUMN_TILES, STEPS, TEAMS, NORM>(product).run(shared, RING_BYTES);
""",
    "streamed_product": """
  extern __shared__ __align__(128) unsigned char shared[];
  StreamedProduct<ROW_TILES, COLUMN_TILES, STAGES, NORM>(product, num_tiles).run(shared);
""",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a product is computed; the result, bitwise, is the same in any.

    ``row_tiles`` times 16 rows of weights are taken at a time by a warp, if streamed by a block,
    and at most 8 ``column_tiles`` rows of x. Weights are read ``ahead`` steps before their
    product; x, and if streamed weights too, go through ``stages`` in shared memory.
    """

    row_tiles: int
    column_tiles: int
    ahead: int = 0
    stages: int = 0
    trial: int = 0
    steps: int = 0
    teams: int = 1

    @property
    def kind(self) -> str:
        if self.steps:
            return "ring_product"
        if not self.stages:
            return "skinny_product"
        return "shared_product" if self.ahead else "streamed_product"

    @classmethod
    def of(cls, rows: int, num_tiles: int, depth: int) -> "Form":
        """Return the quickest form known for ``rows`` of x and so many 16 rows of weights."""
        column_tiles = next(tiles for tiles in (1, 2, 4, 8) if 8 * tiles >= rows)
        if column_tiles <= 2:
            return cls(2, column_tiles, steps=4)
        if depth % (64 * PARTS) == 0 and num_tiles > 4 * MULTIPROCESSORS:
            return cls(12, column_tiles, stages=7 if column_tiles == 8 else 8)
        return cls(4, 4, steps=1) if column_tiles == 4 else cls(3, 8, steps=1)

    def blocks(self, num_tiles: int) -> int:
        """Return how many blocks compute ``num_tiles``."""
        if self.kind == "skinny_product":
            return -(-num_tiles // self.row_tiles)
        if self.kind == "ring_product":
            share = min(-(-2 * num_tiles // MULTIPROCESSORS), MOST_EIGHTS)
            return -(-2 * num_tiles // share)
        return -(-num_tiles // -(-num_tiles // MULTIPROCESSORS))

    def ring_bytes(self) -> int:
        """Return the bytes of the rings: what is left, the same for all warps."""
        unit = 128 * PARTS * self.teams
        return (MOST_SHARED - self._sums_bytes()) // unit * unit

    def _sums_bytes(self) -> int:
        rows = 8 * self.column_tiles
        width = self.teams * self.row_tiles * 16 + 4
        return 4 * PARTS * (min(rows, 16) * width + rows) + MOST_EIGHTS * 8

    def kernel(self, has_norm: bool) -> Kernel:
        """Return the kernel, compiled once in a process."""
        return _kernel(self, has_norm)

    def shared_memory(self, has_norm: bool) -> int:
        """Return the bytes a block takes."""
        rows = 8 * self.column_tiles
        if self.kind == "skinny_product":
            return 4 * PARTS * rows * (self.row_tiles * 16 + 4 + has_norm)
        if self.kind == "shared_product":
            ring = 64 * PARTS * self.stages * (rows + has_norm)
            return ring + 4 * PARTS * (min(rows, 32) * (self.row_tiles * 32 + 4) + rows)
        if self.kind == "ring_product":
            return self.ring_bytes() + self._sums_bytes()
        return 128 * self.stages * (self.row_tiles * 16 + rows + has_norm) + 4 * rows


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """An RMSNorm of what is multiplied: ``weight`` (depth,), ``epsilon`` (1,) in float32."""

    weight: mx.array
    epsilon: mx.array


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
    form = form or Form.of(rows, num_tiles, x.shape[-1])
    none, factors = _constants()
    if norm is not None and form.column_tiles > 2:
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
    """Return x times the weight of ``norm``, and the factor (rows,) for the products of it."""
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
        "weighed_rows(x, norm, *epsilon, out, factors, x_shape[x_ndim - 1]);",
        ("x", "norm", "epsilon"),
        ("out", "factors"),
        template=[("PARTS_OF_DEPTH", PARTS)],
        threads=32 * PARTS,
    )


@cache
def _constants() -> tuple[mx.array, mx.array]:
    """What stands for an input that there is none of: of bfloat16, of float32."""
    return mx.zeros((1,), mx.bfloat16), mx.zeros((1,), mx.float32)


@cache
def _gated() -> mx.array:
    return mx.zeros((2,), mx.bfloat16)


@cache
def _kernel(form: Form, has_norm: bool) -> Kernel:
    template: Template = [
        ("ROW_TILES", form.row_tiles),
        ("COLUMN_TILES", form.column_tiles),
        ("AHEAD", form.ahead),
        ("STAGES", form.stages),
        ("NORM", int(has_norm)),
        ("TRIAL", form.trial),
        ("STEPS", form.steps),
        ("RING_BYTES", form.ring_bytes()),
        ("TEAMS", form.teams),
    ]
    return Kernel(
        form.kind,
        ("warp.cuh", "product_terms.cuh", f"{form.kind}.cuh"),
        PRODUCT + BODIES[form.kind],
        INPUTS,
        ("out",),
        template=template,
        threads=512 if form.kind == "shared_product" else 256 * form.teams,
        blocks=2 if form.kind == "skinny_product" else 1,
        shared_memory=form.shared_memory(has_norm),
    )


def _is_for_kernel(x: mx.array) -> bool:
    return x.dtype == mx.bfloat16 and 0 < x.size <= MOST_ROWS * x.shape[-1]


class SkinnyLinear(nn.Linear):
    """A Linear whose products with few rows are the kernel's."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        if not _is_for_kernel(x):
            out: mx.array = super().__call__(x)
            return out
        return multiply(x, self["weight"], bias=self.get("bias", None))


class SkinnyEmbedding(nn.Embedding):
    """An Embedding that is the output layer too."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        if not _is_for_kernel(x):
            out: mx.array = super().as_linear(x)
            return out
        return multiply(x, self["weight"])


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def bind(model: Any) -> int:
    """Give the products of ``model`` that the kernel takes their class; return how many.

    Only these instances change.
    """
    found = [m for m in model.modules() if type(m) in SKINNY and takes(m["weight"])]
    for module in found:
        module.__class__ = SKINNY[type(module)]
    return len(found)
