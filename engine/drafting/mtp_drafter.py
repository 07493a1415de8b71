"""Drafts with an MTP head: its entries live in pages beside the target's.

The entry made from (x[p], h[p - 1]) lies at page position p and has rotary position p - 1; page
position 0 holds nothing and is masked. So what a block holds depends only on tokens that the
block's hash covers. To go on from a block boundary h of the position before it is needed: every
block keeps that of its last position. Elsewhere it is the pending hidden state in the slot.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from scheduler.round import BlockCopy, Row, SlotCopy

from ..attention.paged import bind_to_pages
from ..backend import Backend
from ..batch import Batch, Window
from ..forward import Forward
from ..pages import PageShape
from ..slots import SlotArray, Slots
from ..view import BatchView
from .chain import Chain
from .chain_cache import ChainCache
from .chained import chained, chained_after, tables_after
from .drafter import Choose, Drafter, choose_likeliest
from .mtp import MTPHead
from .offer import Offer, Unjudged, WindowOffer
from .rounds_behind import Left, RoundsBehind, before

_start: Callable[..., None] = mx.async_eval  # mlx does not type it

SHIFT = 1  # page positions after rotary positions
MOST_BEHIND = 64  # rounds without drafts of a row that are taken in together
IN_ORDER = 2  # times as many where the host's time is what that takes
SHORT = 16  # tokens: rows of windows up to here decode, and will be back next round


def head_shape(head: MTPHead, dtype: mx.Dtype) -> PageShape:
    """What the head's attention layer keeps of a position. Asks the head itself."""
    width = head.norm.weight.shape[0]
    cache: Any = KVCache()  # type: ignore[no-untyped-call]
    nothing = mx.zeros((1, 2, width), dtype)
    head(nothing, nothing, cache=cache)
    keys, values = cache.keys, cache.values
    return PageShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)


class MTPDrafter(Drafter):
    """An MTP head over pages."""

    name = "mtp"

    def __init__(
        self,
        head: MTPHead,
        forward: Forward,
        *,
        num_blocks: int,
        num_spare: int,
        block_size: int,
        num_slots: int,
        dtype: mx.Dtype,
        backend: Backend,
    ) -> None:
        self.head = head
        self.forward = forward
        self.block_size = block_size
        self.spare = range(num_blocks, num_blocks + num_spare)  # for chains that leave their row's
        self.layer = backend.attention_layer(
            head_shape(head, dtype), num_blocks + num_spare, block_size, rotary_shift=SHIFT
        )
        bind_to_pages(head)
        self._run_step = self.layer.compile_step(self._step)
        self._run_chain = self.layer.compile_chain(self._step)
        self._take_in = self.layer.compile_window(self._run_window)
        width = head.norm.weight.shape[0]
        self.pending = Slots({"hidden": SlotArray((width,), dtype)}, num_slots)
        self.block_hidden = Slots({"hidden": SlotArray((width,), dtype)}, num_blocks)
        self._behind = RoundsBehind(block_size)
        self._left: list[Left] = []  # rounds without drafts that nobody has looked at
        self._room = MOST_BEHIND  # as many of them at most
        # of windows with drafts, a hidden state of each row that stands, until they are judged
        self._last: tuple[Batch, mx.array] | None = None

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        return self.begin(rows, choose).read()

    def begin(self, rows: Sequence[Row], choose: Choose) -> Offer:
        """Chain the head: each draft's output is the next one's hidden state."""
        self.catch_up()
        rows = sorted(rows, key=lambda row: (-row.num_drafts, -row.start))
        windows, hidden = [chained(row) for row in rows], self._pending_hidden(rows)
        tokens = mx.array([row.tokens[-1] for row in rows], mx.uint32)  # as what is chosen
        if choose is choose_likeliest and self._run_chain:
            batch = Batch(windows, self.block_size, keep_order=True)
            if not batch.is_ragged:
                offered = self._run_chain.begin(tokens, hidden, batch)
                return WindowOffer([row.seq_id for row in rows], offered)
        return self._chain(windows, hidden, tokens, choose)

    def begin_after(self, before: Unjudged, choose: Choose) -> Offer:
        """The same from where the device says that each row goes on: beyond its blocks, maybe."""
        if choose is choose_likeliest and self._run_chain and not before.batch.is_ragged:
            tables = tables_after(before.batch, before.num_drafts, iter(self.spare))
            offered, last = self._run_chain(before, tables)
            self._last = before.batch, last
            return WindowOffer([row.seq_id for row in before.rows], offered)
        order = sorted(range(len(before.rows)), key=lambda number: -before.rows[number].start)
        place = mx.array(order)
        rows, count = [before.rows[number] for number in order], before.num_drafts
        accepted = before.accepted[place]
        spare = iter(self.spare)
        windows = [chained_after(row, count, self.block_size, spare) for row in rows]
        hidden, following = before.hidden[place, accepted], before.following[place]
        return self._chain(windows, hidden, following, choose, accepted)

    def _chain(
        self,
        windows: Sequence[Window],
        hidden: mx.array,
        tokens: mx.array,
        choose: Choose,
        further: mx.array | None = None,
    ) -> Offer:
        """Run a draft for each token of ``windows``, the longest first.

        ``hidden`` (rows, size) and ``tokens``, uint32 (rows,), begin them, so much ``further``
        (rows,) than the windows say, which then are twice as long as they draft.
        """
        counts = [window.length if further is None else window.length // 2 for window in windows]
        seq_ids, chain = [window.row.seq_id for window in windows], Chain()
        batch = Batch(windows, self.block_size, keep_order=True)
        cache = self.layer.open_chain(batch, further)
        if cache is None:
            cache = ChainCache(self.layer.pages, batch, rotary_shift=SHIFT, further=further)
        hidden = hidden[:, None]
        for step in range(counts[0]):
            count = sum(one > step for one in counts)
            if count < tokens.shape[0]:
                hidden, tokens = hidden[:count], tokens[:count]
            cache.advance(count)
            hidden, logits = self._run_step(tokens, hidden, cache)
            tokens = choose(seq_ids[:count], chain, logits)
            if not self.in_order:
                _start(tokens)  # it runs while the host builds the next step
            chain.add(tokens)
        return Offer(seq_ids, chain, counts)

    def _step(self, tokens: mx.array, hidden: mx.array, cache: Any) -> tuple[mx.array, mx.array]:
        """One draft: the head's output (rows, 1, size), and logits (rows, vocabulary)."""
        output: mx.array = self.head(self.forward.embed(tokens[:, None]), hidden, cache=cache)
        return output, self.forward.logits(output[:, 0])

    def leave(self, view: BatchView, hidden: mx.array) -> bool:
        """Keep the round as it is: whoever reads or writes what is behind looks at it first."""
        if len(self._left) >= self._room:
            self.catch_up()
        self._left.append((view.rows, view.tokens, hidden))
        return True

    def look(self, view: BatchView, hidden: mx.array) -> list[mx.array]:
        """Write the entries of the window; those of drafts that are rejected are never read."""
        self._see_left()
        self._take_before(view.rows, own=True)
        return self._write(view, hidden)

    def _see_left(self) -> None:
        """Put the rounds that were left behind, one after the other.

        What each disturbs is taken in first, as if it had been looked at when it was left: nothing
        of this drafter's has been written since.
        """
        left, self._left = self._left, []
        behind, most, number = self._behind, self._most_behind, 0
        while (number := behind.add_going_on(left, number, most)) < len(left):
            rows, tokens, hidden = left[number]
            self._take_before(rows, own=behind.most(rows) >= most)
            behind.add(rows, tokens, hidden)
            number += 1
        self._room = max(1, most - behind.longest)

    def _take_before(self, rows: Sequence[Row], *, own: bool) -> None:
        """Take in what ``rows`` disturb, and what is behind of their ``own`` sequences.

        Who is taken in begins anew then, maybe with what another is behind with.
        """
        if own:
            self._take([row.seq_id for row in rows])
        while disturbed := self._behind.disturbed_by(rows):
            self._take(disturbed)

    def _write(self, view: BatchView, hidden: mx.array) -> list[mx.array]:
        before = self._pending_hidden(view.rows)
        if self._take_in is not None:
            pending = self._take_in(view, before, hidden)
            if pending is not None:
                return pending
        before = before[:, None]
        if view.batch.width > 1:
            before = mx.concatenate([before, hidden[:, :-1]], axis=1)
        cache = self.layer.open(view)
        self._run_window(view.tokens, before, cache)
        return self.layer.pending(cache)

    def _run_window(self, tokens: mx.array, before: mx.array, cache: Any) -> None:
        # only K and V are evaluated: of a single layer's past nothing else is ever read
        self.head(self.forward.embed(tokens), before, cache=cache)

    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Keep the hidden states that go on from the window."""
        self._keep(view, hidden, kept, decode=view.batch.width <= SHORT)

    def catch_up(self) -> None:
        """Take in what was left for later, at once."""
        self._see_left()
        self._take()
        self._room = self._most_behind

    def _take(self, seq_ids: Iterable[int] | None = None) -> None:
        """Take in what is behind of these sequences, or of all."""
        taken = self._behind.take(seq_ids)
        if taken is not None:
            windows, tokens, hidden = taken
            view = BatchView(Batch(windows, self.block_size, keep_order=True), tokens)
            written = self._write(view, hidden)
            # these decode, however far they are behind
            self._keep(view, hidden, [window.length for window in windows], written, decode=True)

    def undo(self, rows: Iterable[Row]) -> None:
        self._last = None
        for compiled in (self._run_chain, self._take_in):
            if compiled is not None:
                compiled.undo()
        failed, size = {row.seq_id: row for row in rows}, self.block_size
        for row in failed.values():
            self._behind.cut(row)
        parts = (before(left, failed, size) for left in self._left)
        self._left = [part for part in parts if part is not None]

    @property
    def _most_behind(self) -> int:
        return MOST_BEHIND * (IN_ORDER if self.in_order else 1)

    def _keep(
        self,
        view: BatchView,
        hidden: mx.array,
        kept: Sequence[int],
        written: Sequence[mx.array] = (),
        *,
        decode: bool,
    ) -> None:
        """Keep them, evaluate what was ``written``. ``decode``: the rows are back next round."""
        known, self._last = self._last, None
        if view.batch.width == 1:
            last = hidden[:, 0]
        elif known is not None and known[0] is view.batch:
            last = known[1]
        else:
            last = hidden[mx.arange(view.batch.size), mx.array(np.array(kept, np.int32) - 1)]
        boundaries = self._boundaries(view, kept)
        if boundaries:
            rows = mx.array([row for row, _, _ in boundaries], mx.int32)
            places = mx.array([place for _, place, _ in boundaries], mx.int32)
            at_boundaries = hidden[rows, places]
            self._evaluate(last, at_boundaries, *written)
            self.block_hidden.write("hidden", [block for _, _, block in boundaries], at_boundaries)
            self._evaluate(self.block_hidden.arrays)
        else:
            self._evaluate(last, *written)
        self.pending.write("hidden", view.slots, last, stays=decode)
        self._evaluate(self.pending.arrays)

    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        """Copy entries and kept hidden states with their blocks, pending ones with their slots."""
        if blocks or slots:
            self._see_left()
        if len(self._behind) and (blocks or slots):
            held = {end for block in blocks for end in (block.source, block.target)}
            kept = {end for slot in slots for end in (slot.source, slot.target)}
            self._take(self._behind.holders(held, kept))
        for block in blocks:
            copied = self.layer.copy_block(block.source, block.target)
            self.block_hidden.copy(block.source, block.target)
            self._evaluate(copied, self.block_hidden.arrays)
        for slot in slots:
            self.pending.copy(slot.source, slot.target)
            self._evaluate(self.pending.arrays)

    def _evaluate(self, *arrays: Any) -> None:
        if self.in_order:
            _start(*arrays)
        else:
            mx.eval(*arrays)

    def _pending_hidden(self, rows: Sequence[Row]) -> mx.array:
        """h[start - 1] of each row, (rows, size): a block's at a boundary, else its slot's."""
        found = self.pending.read("hidden", [row.slot or 0 for row in rows])
        at_boundary = np.array([row.start % self.block_size == 0 for row in rows])
        if at_boundary.any():
            blocks = [row.blocks[max(0, row.start // self.block_size - 1)] for row in rows]
            kept = self.block_hidden.read("hidden", blocks)
            found = mx.where(mx.array(at_boundary)[:, None], kept, found)
            fresh = np.array([row.start == 0 for row in rows])
            if fresh.any():
                found = mx.where(mx.array(fresh)[:, None], 0, found)
        return found

    def _boundaries(self, view: BatchView, kept: Sequence[int]) -> list[tuple[int, int, int]]:
        """(row, place in its window, block) of every committed last position of a block."""
        found = []
        for number, (row, count) in enumerate(zip(view.rows, kept, strict=True)):
            first = -(row.start + 1) % self.block_size
            found += [
                (number, place, row.blocks[(row.start + place) // self.block_size])
                for place in range(first, count, self.block_size)
            ]
        return found
