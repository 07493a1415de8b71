"""Products of few rows with large weights, on a CPU with OpenBLAS.

OpenBLAS packs both factors before it multiplies, which for few rows of x costs more than the
product: W is copied to be read once. Three ways around it (docs/blas.md has figures):

- ``W @ x.T`` instead of ``x @ W.T``: packs better, 1.3 to 2.7 times faster with the same bits.
- Tiles: below a million multiplications its AVX-512 kernels take another way that packs nothing.
  W seen as a batch of tiles, (tiles, tile, inputs), is one batched product of such small ones;
  nothing is copied. Up to twice as fast again, to 32 rows.
- Lanes: one call is one thread then, so the tiles are divided among CPU streams.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from .. import blas
from .lanes import Lanes

MOST_ROWS = 64  # beyond that all orders cost the same, and the result needs no turning
MOST_TILED_ROWS = 32
SMALL = 1_000_000  # multiplications of the largest product that OpenBLAS does without packing
TILE_VALUES = 1 << 17  # of W: half a megabyte, what a core's second-level cache takes easily
LEAST_TILE = 4  # outputs
LANE_VALUES = 1 << 20  # of W: from here on the handing over is worth it
UNPACKED_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")  # those that know the other way

Layout = list[tuple[mx.Stream, mx.array]]  # (tiles, inputs, tile) a lane


class SkinnyWeight:
    """One weight (outputs, inputs) and the ways to multiply few rows by it."""

    def __init__(self, weight: mx.array, lanes: Lanes | None) -> None:
        """``lanes`` None: no tiles."""
        self.weight = weight
        self.lanes = lanes
        self._layouts: dict[int, Layout] = {}  # by outputs of a tile
        self._tiles: dict[int, int] = {}  # outputs of a tile by rows of x; 0: no tiles

    def product(self, x: mx.array) -> mx.array:
        """x @ weight.T for x (..., inputs) of at most MOST_ROWS rows; (..., outputs)."""
        outputs, inputs = self.weight.shape
        rows = x.size // inputs
        flat = x.reshape(rows, inputs)
        tile = self._tile_for(rows)
        if not tile:
            product = (self.weight @ flat.T).T
        elif tile == outputs:
            product = flat @ self.weight.T
        else:
            product = self.join([part for _, part in self._tiled(flat, tile)])
        return product.reshape(*x.shape[:-1], outputs)

    def parts(self, x: mx.array) -> list[tuple[mx.Stream, mx.array]]:
        """The product of x (rows, inputs), in parts that are still on their lanes, for ``join``.

        Two weights of one shape are divided alike. Empty where the product is not divided.
        """
        outputs, rows = self.weight.shape[0], x.shape[0]
        tile = self._tile_for(rows) if rows <= MOST_ROWS else 0
        return self._tiled(x, tile) if tile not in (0, outputs) else []

    def join(self, parts: Sequence[mx.array]) -> mx.array:
        """Put parts (tiles, rows, tile) together: (rows, outputs)."""
        joined = parts[0] if len(parts) == 1 else mx.concatenate(list(parts))
        return joined.swapaxes(0, 1).reshape(joined.shape[1], -1)

    def _tiled(self, x: mx.array, tile: int) -> list[tuple[mx.Stream, mx.array]]:
        layout = self._layout(tile)
        return [(stream, mx.matmul(x, tiles, stream=stream)) for stream, tiles in layout]

    def _tile_for(self, rows: int) -> int:
        if self.lanes is None or rows > MOST_TILED_ROWS:
            return 0
        if rows not in self._tiles:
            outputs, inputs = self.weight.shape
            self._tiles[rows] = tile_outputs(outputs, inputs, rows)
        return self._tiles[rows]

    def _layout(self, tile: int) -> Layout:
        if tile not in self._layouts:
            assert self.lanes is not None
            outputs, inputs = self.weight.shape
            count = outputs // tile
            pays = self.weight.size >= LANE_VALUES
            stretches = (self.lanes if pays else self.lanes.first).divide(count)
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
            self._layouts[tile] = layout
        return self._layouts[tile]


def tile_outputs(outputs: int, inputs: int, rows: int) -> int:
    """Outputs of a tile that divides a weight for ``rows`` rows of x; 0 if there is none."""
    if outputs * inputs * rows <= SMALL:
        return outputs
    most = min(SMALL // (rows * inputs), TILE_VALUES // inputs)
    return next((tile for tile in range(most, LEAST_TILE - 1, -1) if outputs % tile == 0), 0)


class SkinnyLinear(nn.Linear):
    """A Linear that is quicker for few rows; parameters and results are those of nn.Linear."""

    skinny: SkinnyWeight

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        if x.size > MOST_ROWS * x.shape[-1]:
            out: mx.array = super().__call__(x)
            return out
        product = self.skinny.product(x)
        return product + self["bias"] if "bias" in self else product


class SkinnyEmbedding(nn.Embedding):
    """An Embedding whose use as the output layer is quicker for few rows."""

    skinny: SkinnyWeight

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        if x.size > MOST_ROWS * x.shape[-1]:
            out: mx.array = super().as_linear(x)
            return out
        return self.skinny.product(x)


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def pays_here() -> bool:
    """Whether products run on a CPU with OpenBLAS; MKL gains nothing by any of this."""
    used = blas.current()
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    return on_cpu and used is not None and used.name == "openblas"


def lanes_here() -> Lanes | None:
    """The lanes that tiles are divided among; None where this BLAS gains nothing by tiles."""
    used = blas.current()
    knows = used is not None and used.kernels in UNPACKED_KERNELS
    return Lanes.of_thread() if knows else None


def quicken(model: Any, lanes: Lanes | None) -> int:
    """Give the products of ``model`` the quicker class; return how many. Only these change.

    Call it after the weights are loaded, on the thread that will run the model.
    """
    found = [module for module in model.modules() if type(module) in SKINNY]
    for module in found:
        module.__class__ = SKINNY[type(module)]
        module.skinny = SkinnyWeight(module["weight"], lanes)
    return len(found)
