"""Products of few rows with large weights, on a CPU with OpenBLAS.

OpenBLAS packs both factors before it multiplies, which for few rows of x costs more than the
product: W is copied to be read once. Ways around it (docs/blas.md has figures):

- ``W @ x.T`` instead of ``x @ W.T``: packs better, 1.3 to 2.7 times faster with the same bits.
- Tiles: below a million multiplications its AVX-512 kernels take another way that packs nothing.
  W seen as a batch of tiles, (tiles, tile, inputs), is one batched product of such small ones;
  nothing is copied. Up to twice as fast again, to 32 rows.
- Panels: tiles that are copies of their own (panels.py), near the speed of the memory. They take
  as much of it as the weights, so they are made where there is plenty.
- Lanes: one call is one thread then, so the tiles are divided among CPU streams. So are products
  of many rows: OpenBLAS's own threads spin for a while after each, on cores that others want.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from .divided_panels import DividedPanels, join
from .lanes import Lanes
from .panels import MOST_ROWS as PANEL_ROWS
from .panels import PANEL, SMALL, Panels
from .siblings import Siblings

MOST_ROWS = 64  # beyond that all orders cost the same, and the result needs no turning
MOST_TILED_ROWS = 32
TILE_VALUES = 1 << 17  # of W: half a megabyte, what a core's second-level cache takes easily
LEAST_TILE = 4  # outputs
LANE_VALUES = 1 << 20  # of W, for up to LANE_ROWS rows: from here on the handing over is worth it
LANE_ROWS = 8

Layout = list[tuple[mx.Stream, mx.array]]  # a lane's part of a weight
Way = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Panels of the inputs from ``first`` to ``end``, for one lane."""

    stream: mx.Stream
    first: int
    end: int
    panels: Panels


class SkinnyWeight:
    """One weight (outputs, inputs) and the ways to multiply few rows by it."""

    def __init__(
        self, weight: mx.array, lanes: Lanes, *, tiles: bool, panels: bool = False, bar: int = 1
    ) -> None:
        """``tiles``: whether this BLAS gains by them; ``panels``: whether they may be copied.

        ``bar``: how many times as large a product has to be to be divided.
        """
        self.weight = weight
        self.lanes = lanes
        self.tiles = tiles
        self.bar = bar
        self.divided: DividedPanels | None = None
        if tiles and panels and (copied := Panels.of(weight)) is not None:
            self.divided = DividedPanels(copied)
        self._cuts: list[Cut] = []
        self._siblings: Siblings | None = None
        self._number = 0  # among them
        # (tiles, inputs, outputs of a tile) a lane, by outputs of a tile.
        self._layouts: dict[tuple[int, Lanes], Layout] = {}
        # The weight's rows, (outputs, inputs) a lane, or turned.
        self._stretches: dict[tuple[bool, Lanes], Layout] = {}
        self._tiles: dict[int, int] = {}  # outputs of a tile by rows of x; 0: no tiles
        self._ways: dict[int, Way] = {}  # by rows of x

    def product(self, x: mx.array) -> mx.array:
        """x @ weight.T for x (..., inputs); (..., outputs)."""
        outputs, inputs = self.weight.shape
        rows = x.size // inputs
        if self._siblings is not None and rows <= PANEL_ROWS:
            lanes = self._lanes_for(rows, self._siblings.size)
            return self._siblings.product(self._number, x, lanes)
        if rows not in self._ways:
            self._ways[rows] = self._way_for(rows)
        product = self._ways[rows](x.reshape(rows, inputs))
        return product.reshape(*x.shape[:-1], outputs)

    def _way_for(self, rows: int) -> Way:
        """How so many rows, (rows, inputs), are multiplied: (rows, outputs)."""
        if self.is_cut(rows):
            return self._by_cut_inputs
        if not self._is_tiled(rows) and self._tile_for(rows) == self.weight.shape[0]:
            turned = self.weight.T
            mx.eval(turned)  # a view
            return lambda x: x @ turned
        if not self._is_tiled(rows) and rows <= MOST_ROWS:
            return self._turned
        if self.fits_panels(rows):
            return self._by_panels
        return lambda x: join([part for _, part in self.parts(x)])

    def _by_cut_inputs(self, x: mx.array) -> mx.array:
        return self.sum_of([(cut.stream, x[:, cut.first : cut.end]) for cut in self._cuts])

    def _by_panels(self, x: mx.array) -> mx.array:
        assert self.divided is not None
        return self.divided.product(x, self._lanes_for(x.shape[0]))

    def _turned(self, x: mx.array) -> mx.array:
        """weight @ x.T, turned back."""
        stretched = self._stretched(x.shape[0])
        parts = [mx.matmul(w, x.T, stream=stream) for stream, w in stretched]
        return (parts[0] if len(parts) == 1 else mx.concatenate(parts)).T

    def is_divided(self, rows: int) -> bool:
        """Whether a product with so many rows has ``parts`` on several lanes."""
        has_parts = self._is_tiled(rows) or rows > MOST_ROWS
        return has_parts and len(self._lanes_for(rows).streams) > 1

    def parts(self, x: mx.array) -> list[tuple[mx.Stream, mx.array]]:
        """The product of x (rows, inputs), in parts that are still on their lanes, for ``join``.

        Two weights of one shape are divided alike. Empty where it is neither in tiles nor wide.
        """
        rows = x.shape[0]
        if self.divided is not None and rows <= PANEL_ROWS:
            return self.divided.parts(x, self._lanes_for(rows))
        if self._is_tiled(rows):
            layout = self._layout(rows)
            return [(stream, mx.matmul(x, tiles, stream=stream)) for stream, tiles in layout]
        if rows <= MOST_ROWS:
            return []
        return [(s, mx.matmul(x, w, stream=s)[None]) for s, w in self._stretched(rows, turned=True)]

    def cut_inputs_like_outputs(self, before: "SkinnyWeight") -> None:
        """Let each lane have panels of the inputs that it makes itself, as outputs of ``before``.

        Instead of panels of its own share of the outputs; nothing where one of both has none.
        """
        lanes = self._lanes_for(1)
        if self.divided is None or before.divided is None or len(lanes.streams) == 1:
            return
        cuts = []
        for stream, low, end in lanes.divide(before.divided.panels.count):
            first, last = low * PANEL, end * PANEL
            with mx.stream(stream):
                part = Panels.of(self.weight[:, first:last])
            if part is None:
                return
            cuts.append(Cut(stream, first, last, part))
        self.divided, self._cuts = None, cuts
        self._ways.clear()

    def share(self, siblings: Siblings, number: int) -> None:
        """Multiply with ``siblings`` from now on, as the one of this ``number``.

        The panels are theirs then, and ``parts`` has none of them.
        """
        self._siblings, self._number = siblings, number
        self.divided = None
        self._ways.clear()

    @property
    def has_siblings(self) -> bool:
        """Whether others multiply with it."""
        return self._siblings is not None

    @property
    def copies(self) -> list[Panels]:
        """What there is beside the weight."""
        if self._siblings is not None:
            return [self._siblings.divided.panels]
        return [cut.panels for cut in self._cuts] if self.divided is None else [self.divided.panels]

    def is_cut(self, rows: int) -> bool:
        """Whether so many rows are multiplied by inputs that were cut, see ``sum_of``."""
        return bool(self._cuts) and rows <= PANEL_ROWS

    def sum_of(self, parts: Sequence[tuple[mx.Stream, mx.array]]) -> mx.array:
        """The product (rows, outputs) of what each lane has made of x, (rows, its inputs)."""
        sums = [
            cut.panels.times(part, stream)
            for cut, (stream, part) in zip(self._cuts, parts, strict=True)
        ]
        return join([sum(sums[1:], start=sums[0])])

    def _is_tiled(self, rows: int) -> bool:
        return self.fits_panels(rows) or self._tile_for(rows) not in (0, self.weight.shape[0])

    def fits_panels(self, rows: int) -> bool:
        """Whether so many rows are multiplied by panels."""
        return self.divided is not None and rows <= PANEL_ROWS

    def _tile_for(self, rows: int) -> int:
        if not self.tiles or rows > MOST_TILED_ROWS:
            return 0
        if rows not in self._tiles:
            outputs, inputs = self.weight.shape
            self._tiles[rows] = tile_outputs(outputs, inputs, rows)
        return self._tiles[rows]

    def _lanes_for(self, rows: int, size: int | None = None) -> Lanes:
        if (only := Lanes.only()) is not None:
            return only
        size = self.weight.size if size is None else size
        pays = size * max(rows, LANE_ROWS) >= self.bar * LANE_VALUES * LANE_ROWS
        return self.lanes if pays else self.lanes.first

    def _layout(self, rows: int) -> Layout:
        lanes = self._lanes_for(rows)
        tile = self._tile_for(rows)
        if (tile, lanes) not in self._layouts:
            tiles = self.weight.reshape(-1, tile, self.weight.shape[1]).swapaxes(1, 2)
            stretches = lanes.divide(tiles.shape[0])
            layout = [(stream, tiles[first:end]) for stream, first, end in stretches]
            mx.eval([part for _, part in layout])  # views: nothing is copied
            self._layouts[tile, lanes] = layout
        return self._layouts[tile, lanes]

    def _stretched(self, rows: int, *, turned: bool = False) -> Layout:
        lanes = self._lanes_for(rows)
        if (turned, lanes) not in self._stretches:
            stretches = lanes.divide(self.weight.shape[0])
            layout = [(stream, self.weight[low:end]) for stream, low, end in stretches]
            if turned:
                layout = [(stream, part.T) for stream, part in layout]
            mx.eval([part for _, part in layout])  # views: nothing is copied
            self._stretches[turned, lanes] = layout
        return self._stretches[turned, lanes]


def tile_outputs(outputs: int, inputs: int, rows: int) -> int:
    """Outputs of a tile that divides a weight for ``rows`` rows of x; 0 if there is none."""
    if outputs * inputs * rows <= SMALL:
        return outputs
    most = min(SMALL // (rows * inputs), TILE_VALUES // inputs)
    return next((tile for tile in range(most, LEAST_TILE - 1, -1) if outputs % tile == 0), 0)
