"""Attention over pages, behind mlx-lm's own attention modules.

A module that calls ``scaled_dot_product_attention`` gets, for this one loaded model, a class whose
``__call__`` is the same code with that one name bound to ours. Keys and values then never have to
be gathered for the whole batch at once: each span of rows is gathered and attended on its own.
Modules that look into the fetched keys (latent attention, say) fail the probe at load and get
gathered arrays instead.
"""

from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import base

from ..pages import Pages
from ..spans import GroupSpan, Span
from .index import BatchIndex
from .tiles import attend_in_tiles, pays
from .two_parts import attend_two_parts

SDPA = "scaled_dot_product_attention"


class InPages:
    """Stands for keys, values or a mask that stay in pages; useless but for our attention.

    It knows its pages, for a later layer may attend to an earlier one's keys.
    """

    def __init__(self, cache: "PagedCache") -> None:
        self.cache = cache


class PagedCache:
    """One attention layer's share of a batch: what its module is given as ``cache``.

    Page positions lie ``rotary_shift`` after rotary ones; those before it hold nothing.
    """

    def __init__(
        self,
        pages: Pages,
        index: BatchIndex,
        *,
        window_size: int | None = None,
        gathers: bool = False,
        rotary_shift: int = 0,
        tiles: bool = False,
    ) -> None:
        self.pages = pages
        self.index = index
        self.window_size = window_size
        self.gathers = gathers
        self.rotary_shift = rotary_shift
        self.tiles = tiles
        self._offset: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """Rotary position of each row's first token, (rows,): made when a module asks for it."""
        if self._offset is None:
            self._offset = self.index.offset(self.rotary_shift)
        return self._offset

    @offset.setter
    def offset(self, offset: mx.array) -> None:
        self._offset = offset

    def make_mask(
        self, _length: int, return_array: bool = False, window_size: int | None = None
    ) -> "mx.array | InPages":
        """The mask of the whole batch; a placeholder where our attention makes its own."""
        if self.gathers:
            window_size = window_size or self.window_size
            return self.index.mask(self._whole(), window_size, self.rotary_shift)
        return InPages(self)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the windows' K/V, (rows, heads, width, dim), and return what to attend to."""
        self.pages.write(self.index.places(self.pages), keys, values)
        if self.gathers:
            return self.pages.gather(self.index.numbers(self._whole(), self.pages))
        return InPages(self), InPages(self)

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Attention of ``queries``, (rows, heads, width, dim), over their rows' pages."""
        batch = self.index.batch
        sees_all = self.window_size is None and sinks is None
        outputs: list[mx.array] = []
        for part in batch.parts if sees_all else batch.spans:
            if isinstance(part, GroupSpan):
                outputs += self._attend_group(part, queries, scale)
                continue
            outputs.append(self._attend_span(part, queries, scale, sinks))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=0)

    def _attend_span(
        self, span: Span, queries: mx.array, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """Attention of a span's rows, each over all its own pages."""
        queries = queries[span.first : span.last]
        keys, values = self.pages.gather(self.numbers(span))
        mask = self.index.mask(span, self.window_size, self.rotary_shift)
        if self.tiles and sinks is None and pays(queries, keys):
            num_seen = int(self.index.batch.starts[span.first : span.last].max()) + 1
            return attend_in_tiles(queries, keys, values, scale=scale, mask=mask, num_seen=num_seen)
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )

    def _attend_group(self, group: GroupSpan, queries: mx.array, scale: float) -> list[mx.array]:
        """Attention of a group's rows, in order: what they share is gathered once."""
        keys, values = self.pages.gather(self.numbers(group.shared))
        first = self.rotary_shift  # positions before it hold nothing, and no query stands there
        return [
            attend_two_parts(
                queries[span.first : span.last],
                (keys[0, :, first:], values[0, :, first:]),
                self.pages.gather(self.numbers(span)),
                scale=scale,
                mask=self.index.mask(span, None, self.rotary_shift),
            )
            for span in group.own
        ]

    def numbers(self, span: Span) -> mx.array:
        """Flat numbers of the blocks that the rows of ``span`` see."""
        return self.index.numbers(span, self.pages)

    def _whole(self) -> Span:
        return Span(0, self.index.batch.size, self.index.batch.blocks.shape[1])


def attention_over_pages(  # noqa: PLR0917  # mlx-lm's own signature
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Stand in for mlx-lm's ``scaled_dot_product_attention``, with the same arguments."""
    if isinstance(keys, InPages):
        return keys.cache.attend(queries, scale, sinks)
    out: mx.array = base.scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
    )
    return out


def bind_to_pages(model: nn.Module) -> int:
    """Give each attention module of ``model`` a class that attends over pages; return how many.

    Only the instances change: no module or class of mlx-lm does.
    """
    bound: dict[type, type] = {}
    count = 0
    for module in model.modules():
        kind = type(module)
        call = kind.__call__
        if not isinstance(call, FunctionType) or SDPA not in call.__code__.co_names:
            continue
        if kind not in bound:
            names = {**call.__globals__, SDPA: attention_over_pages}
            rebound = FunctionType(
                call.__code__, names, call.__name__, call.__defaults__, call.__closure__
            )
            rebound.__kwdefaults__ = call.__kwdefaults__
            bound[kind] = type(f"Paged{kind.__name__}", (kind,), {"__call__": rebound})
        module.__class__ = bound[kind]
        count += 1
    return count
