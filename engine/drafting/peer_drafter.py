"""Drafts with a smaller model that keeps states, in memory numbered like the target's.

The peer runs whatever the target commits, with the same blocks, slots, folds and captures, so what
is true of the target's memory (what is shared, copied, checkpointed, rolled back) is true of the
peer's. Its drafting steps write K/V where the window's own will lie; states they leave in scratch
slots behind the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mlx.core as mx
from mlx import nn

from scheduler.round import BlockCopy, Row, SlotCopy

from ..batch import Batch, Window
from ..certain_run import run_certain
from ..forward import Forward
from ..prepared import Prepared
from ..view import BatchView
from .chain import Chain
from .drafter import Choose, Drafter


class PeerForward(Forward):
    """A peer's forward pass, for tokens of a larger vocabulary too."""

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        super().__init__(model)
        self.vocab_size = vocab_size

    def hidden(self, tokens: mx.array, caches: Sequence[object]) -> mx.array:
        """As of any model; a token that the peer does not know counts as its token 0."""
        return super().hidden(mx.where(tokens < self.vocab_size, tokens, 0), caches)


class PeerDrafter(Drafter):
    """A draft model over slots, and over pages if it has attention as well."""

    name = "peer"

    def __init__(
        self,
        forward: PeerForward,
        ready: Prepared,
        *,
        num_blocks: int,
        num_slots: int,
        max_rows: int,
        target_vocab_size: int,
    ) -> None:
        self.forward = forward
        self.block_size = ready.block_size
        self.first_scratch = num_slots
        self.store = ready.make_store(num_blocks, num_slots + max_rows)
        self.target_vocab_size = target_vocab_size

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """Run the pending token, then each draft after the other but the last."""
        rows = self._rows_that_draft(rows)
        scratch = self._lend_scratch(rows)
        seq_ids = [row.seq_id for row in rows]
        chain = Chain()
        tokens = mx.array([row.tokens[-1] for row in rows])
        for step in range(rows[0].num_drafts if rows else 0):
            count = sum(row.num_drafts > step for row in rows)
            rows, tokens = rows[:count], tokens[:count]
            view = self._step_view(rows, step, scratch)
            caches = self.store.open(view)
            hidden = self.forward.hidden(tokens[:, None], caches)
            logits = self.forward.logits(hidden)[:, 0, : self.target_vocab_size]
            tokens = choose(seq_ids[:count], chain, logits)
            mx.eval(tokens, self.store.pending(caches))
            self.store.store(view, caches)
            chain.add(tokens)
        return dict(zip(seq_ids, chain.all(), strict=True))

    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Run the committed part of every window."""
        pairs = zip(view.batch.windows, kept, strict=True)
        windows = [self._to_run(window, count) for window, count in pairs]
        run_certain(self.forward, self.store, windows, self.block_size)

    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        self.store.copy(blocks, slots)

    def _rows_that_draft(self, rows: Sequence[Row]) -> list[Row]:
        """Those with the most drafts first; see Store.num_drafts for who may draft fewer."""
        sizes = [self.store.num_drafts(row, self.block_size) for row in rows]
        pairs = zip(rows, sizes, strict=True)
        able = [replace(row, num_drafts=size) for row, size in pairs if size]
        return sorted(able, key=lambda row: (-row.num_drafts, -row.start))

    def _step_view(self, rows: Sequence[Row], step: int, scratch: Mapping[int, int]) -> BatchView:
        """One token a row, ``step`` positions after the pending one, in its scratch slot."""
        assert all(len(row.tokens) == 1 for row in rows), "drafts follow a single pending token"
        windows = [
            Window(
                Row(
                    row.seq_id,
                    (0,),
                    row.start + step,
                    row.blocks,
                    scratch[row.slot or 0],
                    row.fold if step == 0 else 0,
                )
            )
            for row in rows
        ]
        return BatchView(Batch(windows, self.block_size, keep_order=True))

    def _lend_scratch(self, rows: Sequence[Row]) -> Mapping[int, int]:
        """Give each row's drafting steps its state, with what is recorded beside it.

        Scratch slots are in the order of the rows' own: rows that lie together stay together.
        """
        slots = sorted(row.slot or 0 for row in rows)
        pairs = {slot: scratch for scratch, slot in enumerate(slots, self.first_scratch)}
        self.store.lend(pairs)
        return pairs

    def _to_run(self, window: Window, num_kept: int) -> Window:
        row, accepted = window.row, window.drafts[: num_kept - len(window.row.tokens)]
        if self.store.cuts:  # states stand where the next window starts: nothing is folded
            return Window(replace(row, tokens=row.tokens + accepted, num_drafts=0))
        return Window(row, accepted)  # what is recorded is folded by the row's next window
