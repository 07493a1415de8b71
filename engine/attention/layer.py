"""An attention layer: K/V in pages."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import mlx.core as mx

from ..batch import Batch, Int32s
from ..drafting.offer import Unjudged
from ..layers import Layer
from ..pages import Pages, PageShape
from ..view import BatchView
from .paged import PagedCache

Cache = TypeVar("Cache", bound=PagedCache)


class DraftChain(Protocol):
    """What a module is given as ``cache`` for drafts that follow each other, every step."""

    def advance(self, count: int) -> None:
        """Go on to the next token, of the first ``count`` rows."""
        ...


RunStep = Callable[[mx.array, mx.array, Any], tuple[mx.array, mx.array]]
"""Tokens (rows,), hidden states (rows, 1, size), cache -> hidden states, logits (rows, words)."""

RunWindow = Callable[[mx.array, mx.array, Any], object]
"""Tokens (rows, width), the hidden states before them (rows, width, size), cache."""


class TakeIn(Protocol):
    """Takes in short windows by one graph."""

    def __call__(
        self, view: BatchView, before: mx.array, hidden: mx.array
    ) -> list[mx.array] | None:
        """Return what to evaluate for the pages to hold a window; None: it cannot take this one.

        ``before`` (rows, size) is the hidden state before it, ``hidden`` (rows, width, size) its.
        """
        ...

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        ...


class RunChain(Protocol):
    """Runs chains of the likeliest tokens by one graph."""

    def begin(self, tokens: mx.array, hidden: mx.array, batch: Batch) -> mx.array:
        """Return windows, (rows, width) int32: each its token of ``tokens``, uint32, and drafts.

        ``hidden`` (rows, size) begins them; ``batch`` has their positions, all as many.
        """
        ...

    def __call__(self, before: Unjudged, tables: Int32s) -> tuple[mx.array, mx.array]:
        """Return windows that follow ``before``, likewise, which nobody has judged.

        And the hidden states that they begin with, (rows, size). ``tables`` (rows, any) are blocks
        of what the chains may write to.
        """
        ...

    def undo(self) -> None:
        """A run failed: forget what it left, which must never be evaluated."""
        ...


class AttentionLayer(Layer):
    """K/V in pages. ``window_size`` limits how far back a query sees, in positions.

    ``tiles``: wide windows may attend in tiles, where that is faster; rounding is another then.
    """

    def __init__(
        self,
        shape: PageShape,
        num_blocks: int,
        block_size: int,
        *,
        window_size: int | None = None,
        gathers: bool = False,
        rotary_shift: int = 0,
        tiles: bool = False,
    ) -> None:
        self.pages = Pages(shape, num_blocks, block_size)
        self.window_size = window_size
        self.gathers = gathers
        self.rotary_shift = rotary_shift
        self.tiles = tiles
        how = "gathered whole" if gathers else "gathered by span"
        self.kind = f"paged attention, {how}"
        if window_size is not None:
            self.kind += f", window of {window_size}"

    def open(self, view: BatchView) -> PagedCache:
        return self._open(PagedCache, view)

    def _open(self, kind: Callable[..., Cache], view: BatchView, **more: Any) -> Cache:
        """Return a cache of a ``kind`` that takes what PagedCache does, and ``more``."""
        return kind(
            self.pages,
            view.index,
            window_size=self.window_size,
            gathers=self.gathers,
            rotary_shift=self.rotary_shift,
            tiles=self.tiles,
            **more,
        )

    def open_chain(self, batch: Batch, further: mx.array | None = None) -> DraftChain | None:
        """Return a ``cache`` for drafts that follow each other, which writes them to the pages.

        They begin so much ``further``, (rows,), than ``batch`` says. None where pages may be
        written once an evaluation: see drafting.chain_cache.
        """
        return None

    def compile_step(self, run: RunStep) -> RunStep:
        """Return what runs a step of a chain over such a ``cache``: ``run``, or what is faster."""
        return run

    def compile_window(self, run: RunWindow) -> TakeIn | None:
        """Return what does as ``run`` over an open cache for short windows; None: nothing does."""
        return None

    def compile_chain(self, run: RunStep) -> RunChain | None:
        """Return what runs whole chains of such steps; None: they run step by step."""
        return None

    def pending(self, cache: PagedCache) -> list[mx.array]:
        return self.pages.arrays

    def copy_block(self, source: int, target: int) -> list[mx.array]:
        self.pages.copy_block(source, target)
        return self.pages.arrays

    @property
    def arrays(self) -> list[mx.array]:
        return self.pages.arrays
