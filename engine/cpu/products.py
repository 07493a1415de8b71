"""Products of few rows with large weights, on a CPU with OpenBLAS.

OpenBLAS packs both factors before it multiplies, which for few rows of x costs more than the
product: W is copied to be read once. Three ways around it (docs/blas.md has figures):

- ``W @ x.T`` instead of ``x @ W.T``: packs better, 1.3 to 2.7 times faster with the same bits.
- Tiles: below a million multiplications its AVX-512 kernels take another way that packs nothing.
  W seen as a batch of tiles, (tiles, tile, inputs), is one batched product of such small ones;
  nothing is copied. Up to twice as fast again, to 32 rows.
- Lanes: one call is one thread then, so the tiles are divided among CPU streams. So are products
  of many rows: OpenBLAS's own threads spin for a while after each, on cores that others want.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from .. import blas
from ..quick_classes import exchange
from .lanes import Lanes

MOST_ROWS = 64  # beyond that all orders cost the same, and the result needs no turning
MOST_TILED_ROWS = 32
SMALL = 1_000_000  # multiplications of the largest product that OpenBLAS does without packing
TILE_VALUES = 1 << 17  # of W: half a megabyte, what a core's second-level cache takes easily
LEAST_TILE = 4  # outputs
LANE_VALUES = 1 << 20  # of W, for up to LANE_ROWS rows: from here on the handing over is worth it
LANE_ROWS = 8
UNPACKED_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")  # those that know the other way

Layout = list[tuple[mx.Stream, mx.array]]  # (tiles, inputs, tile) a lane


class SkinnyWeight:
    """One weight (outputs, inputs) and the ways to multiply few rows by it."""

    def __init__(self, weight: mx.array, lanes: Lanes, *, tiles: bool) -> None:
        """``tiles``: whether this BLAS gains by them."""
        self.weight = weight
        self.lanes = lanes
        self.tiles = tiles
        self._layouts: dict[tuple[int, Lanes], Layout] = {}  # by outputs of a tile, and lanes
        self._stretches: dict[Lanes, Layout] = {}  # the weight's rows, (outputs, inputs) a lane
        self._tiles: dict[int, int] = {}  # outputs of a tile by rows of x; 0: no tiles

    def product(self, x: mx.array) -> mx.array:
        """x @ weight.T for x (..., inputs); (..., outputs)."""
        outputs, inputs = self.weight.shape
        rows = x.size // inputs
        flat = x.reshape(rows, inputs)
        tile = self._tile_for(rows)
        if tile == outputs:
            product = flat @ self.weight.T
        elif tile:
            product = self.join([part for _, part in self._tiled(flat, tile)])
        elif rows <= MOST_ROWS:
            turned = flat.T
            parts = [mx.matmul(w, turned, stream=stream) for stream, w in self._stretched(rows)]
            product = (parts[0] if len(parts) == 1 else mx.concatenate(parts)).T
        else:
            parts = [mx.matmul(flat, w.T, stream=stream) for stream, w in self._stretched(rows)]
            product = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
        return product.reshape(*x.shape[:-1], outputs)

    def is_divided(self, rows: int) -> bool:
        """Whether a product with so many rows is in tiles that several lanes share."""
        tiled = self._tile_for(rows) not in (0, self.weight.shape[0])
        return tiled and len(self._lanes_for(rows).streams) > 1

    def parts(self, x: mx.array) -> list[tuple[mx.Stream, mx.array]]:
        """The product of x (rows, inputs), in parts that are still on their lanes, for ``join``.

        Two weights of one shape are divided alike. Empty where the product is not divided.
        """
        outputs, rows = self.weight.shape[0], x.shape[0]
        tile = self._tile_for(rows)
        return self._tiled(x, tile) if tile not in (0, outputs) else []

    def join(self, parts: Sequence[mx.array]) -> mx.array:
        """Put parts (tiles, rows, tile) together: (rows, outputs)."""
        turned = [part.swapaxes(0, 1) for part in parts]
        joined = turned[0] if len(turned) == 1 else mx.concatenate(turned, axis=1)
        return joined.reshape(joined.shape[0], -1)

    def _tiled(self, x: mx.array, tile: int) -> list[tuple[mx.Stream, mx.array]]:
        layout = self._layout(tile, self._lanes_for(x.shape[0]))
        return [(stream, mx.matmul(x, tiles, stream=stream)) for stream, tiles in layout]

    def _tile_for(self, rows: int) -> int:
        if not self.tiles or rows > MOST_TILED_ROWS:
            return 0
        if rows not in self._tiles:
            outputs, inputs = self.weight.shape
            self._tiles[rows] = tile_outputs(outputs, inputs, rows)
        return self._tiles[rows]

    def _lanes_for(self, rows: int) -> Lanes:
        pays = self.weight.size * max(rows, LANE_ROWS) >= LANE_VALUES * LANE_ROWS
        return self.lanes if pays else self.lanes.first

    def _layout(self, tile: int, lanes: Lanes) -> Layout:
        if (tile, lanes) not in self._layouts:
            outputs, inputs = self.weight.shape
            stretches = lanes.divide(outputs // tile)
            layout = [
                (
                    stream,
                    self.weight[first * tile : end * tile]
                    .reshape(end - first, tile, inputs)
                    .swapaxes(1, 2),
                )
                for stream, first, end in stretches
            ]
            mx.eval([tiles for _, tiles in layout])  # views: nothing is copied
            self._layouts[tile, lanes] = layout
        return self._layouts[tile, lanes]

    def _stretched(self, rows: int) -> Layout:
        lanes = self._lanes_for(rows)
        if lanes not in self._stretches:
            stretches = lanes.divide(self.weight.shape[0])
            layout = [(stream, self.weight[low:end]) for stream, low, end in stretches]
            mx.eval([part for _, part in layout])  # views: nothing is copied
            self._stretches[lanes] = layout
        return self._stretches[lanes]


def tile_outputs(outputs: int, inputs: int, rows: int) -> int:
    """Outputs of a tile that divides a weight for ``rows`` rows of x; 0 if there is none."""
    if outputs * inputs * rows <= SMALL:
        return outputs
    most = min(SMALL // (rows * inputs), TILE_VALUES // inputs)
    return next((tile for tile in range(most, LEAST_TILE - 1, -1) if outputs % tile == 0), 0)


class SkinnyLinear(nn.Linear):
    """A Linear that is quicker, most for few rows; parameters and results are nn.Linear's."""

    skinny: SkinnyWeight

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        product = self.skinny.product(x)
        return product + self["bias"] if "bias" in self else product


class SkinnyEmbedding(nn.Embedding):
    """An Embedding whose use as the output layer is quicker."""

    skinny: SkinnyWeight

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        return self.skinny.product(x)


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def pays_here() -> bool:
    """Whether products run on a CPU with OpenBLAS; MKL gains nothing by any of this."""
    used = blas.current()
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    return on_cpu and used is not None and used.name == "openblas"


def mostly_large(model: Any) -> bool:
    """Whether most of ``model``'s weights are in products that are worth dividing among lanes.

    Of a small model they are not: its products are over before another stream has begun, and
    OpenBLAS's own threads are quicker.
    """
    modules = [module for module in model.modules() if type(module) in SKINNY]
    weights: list[int] = [module["weight"].size for module in modules]
    return 2 * sum(size for size in weights if size >= LANE_VALUES) > sum(weights)


def tiles_pay() -> bool:
    """Whether this BLAS has kernels that pack nothing below SMALL multiplications."""
    used = blas.current()
    return used is not None and used.kernels in UNPACKED_KERNELS


def quicken(model: Any, lanes: Lanes, *, tiles: bool) -> int:
    """Give the products of ``model`` the quicker class; return how many. Only these change.

    Call it after the weights are loaded, on the thread that will run the model. With several
    ``lanes`` the BLAS is left one thread.
    """
    if len(lanes.streams) > 1:
        blas.set_threads(1)
    found = exchange(model, SKINNY)
    for module in found:
        module.skinny = SkinnyWeight(module["weight"], lanes, tiles=tiles)
    return len(found)
