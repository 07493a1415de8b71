"""Forms of the product for few rows: the result, bitwise, is the same in any of them."""

from dataclasses import dataclass
from functools import cache

from .device import MULTIPROCESSORS
from .source import Kernel, Template

PARTS = 8  # of the depth, whose sums are added in order
MOST_SHARED = 227 * 1024  # bytes that a block may have
INPUTS = ("x", "w0", "w1", "w2", "w3", "bias", "residual", "norm", "epsilon", "factors", "mode")
PRODUCT = """
  extern __shared__ __align__(128) unsigned char shared[];
  Product product;
  product.rows = 1;
  for (int i = 0; i < x_ndim - 1; i++) product.rows *= x_shape[i];
  product.depth = w0_shape[1];
  product.x = x;
  product.weights[0] = w0;
  product.weights[1] = w1;
  product.weights[2] = w2;
  product.weights[3] = w3;
  product.ends[0] = w0_shape[0];
  product.ends[1] = product.ends[0] + (w1_ndim == 2 ? w1_shape[0] : 0);
  product.ends[2] = product.ends[1] + (w2_ndim == 2 ? w2_shape[0] : 0);
  product.ends[3] = product.ends[2] + (w3_ndim == 2 ? w3_shape[0] : 0);
  product.bias = bias_shape[0] == 1 ? nullptr : bias;
  product.residual = residual_shape[residual_ndim - 1] == 1 ? nullptr : residual;
  product.norm = norm;
  product.epsilon = NORM ? *epsilon : 0.f;  // read here: it may lie in the host's memory
  product.factors = factors_shape[0] == 1 ? nullptr : factors;
  product.out = out;
  product.gated = mode_shape[0] == 2;
"""


@dataclass(frozen=True, slots=True)
class RingForm:
    """Each warp has a part of the depth: ring_product.cuh says how.

    A warp takes ``tiles`` of 16 rows of weights at a time, and 8 ``column_tiles`` rows of x, of
    32 ``steps`` numbers each.
    """

    tiles: int
    column_tiles: int
    steps: int

    MOST_EIGHTS = 512  # columns of a block, by eights

    def takes(self, depth: int) -> bool:
        """Whether rows may have so many numbers."""
        return depth % (32 * PARTS) == 0

    def blocks(self, num_tiles: int) -> int:
        """Return how many blocks compute ``num_tiles``: one of a few columns each."""
        eights = 2 * num_tiles
        share = min(-(-eights // MULTIPROCESSORS), self.MOST_EIGHTS)
        return -(-eights // share)

    def kernel(self, has_norm: bool) -> Kernel:
        """Return the kernel, compiled once in a process."""
        rows = 8 * self.column_tiles
        sums = 4 * PARTS * (min(rows, 16) * (self.tiles * 16 + 4) + rows)
        left = MOST_SHARED - sums - 8 * self.MOST_EIGHTS
        template: Template = [
            ("TILES", self.tiles),
            ("COLUMN_TILES", self.column_tiles),
            ("STEPS", self.steps),
            ("NORM", int(has_norm)),
            ("RING_BYTES", left // (128 * PARTS) * 128 * PARTS),
        ]
        run = "RingProduct<TILES, COLUMN_TILES, STEPS, NORM>(product).run(shared, RING_BYTES);"
        return _kernel("ring_product", run, tuple(template), MOST_SHARED)


@dataclass(frozen=True, slots=True)
class StreamedForm:
    """All warps run through the whole depth together: streamed_product.cuh says how."""

    column_tiles: int  # of 8 rows of x

    TILES = 12  # of 16 rows of weights, of a block at a time

    def takes(self, depth: int) -> bool:
        """Whether rows may have so many numbers."""
        return depth % (64 * PARTS) == 0

    def blocks(self, num_tiles: int) -> int:
        """Return how many blocks compute ``num_tiles``."""
        return -(-num_tiles // -(-num_tiles // MULTIPROCESSORS))

    def kernel(self, has_norm: bool) -> Kernel:
        """Return the kernel, compiled once in a process."""
        rows = 8 * self.column_tiles
        stage = 128 * (self.TILES * 16 + rows + has_norm)
        stages = (MOST_SHARED - 4 * rows) // stage
        template: Template = [
            ("TILES", self.TILES),
            ("COLUMN_TILES", self.column_tiles),
            ("STAGES", stages),
            ("NORM", int(has_norm)),
        ]
        run = "StreamedProduct<TILES, COLUMN_TILES, STAGES, NORM>(product).run(shared);"
        return _kernel("streamed_product", run, tuple(template), stages * stage + 4 * rows)


Form = RingForm | StreamedForm


def quickest(rows: int, num_tiles: int, depth: int) -> Form:
    """Return the form that was measured best, of ``rows`` of x by so many 16 rows of weights."""
    column_tiles = next(tiles for tiles in (1, 2, 4, 8) if 8 * tiles >= rows)
    streamed = StreamedForm(column_tiles)
    if column_tiles > 2 and num_tiles > 6 * MULTIPROCESSORS and streamed.takes(depth):
        return streamed
    return RingForm(2, column_tiles, steps=2)


@cache
def _kernel(
    name: str, run: str, template: tuple[tuple[str, int], ...], shared_memory: int
) -> Kernel:
    return Kernel(
        name,
        ("warp.cuh", "product_terms.cuh", f"{name}.cuh"),
        f"{PRODUCT}  {run}\n",
        INPUTS,
        ("out",),
        template=list(template),
        threads=32 * PARTS,
        shared_memory=shared_memory,
    )
