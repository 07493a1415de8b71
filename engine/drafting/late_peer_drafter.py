"""Drafts with a smaller model that keeps nothing but K/V: it runs only when it is to draft.

While nobody drafts it runs nothing, neither tokens nor new prompts, and its pages fall behind;
blocks say how far they are filled. A row that drafts is caught up first: what is far behind in
chunks of its own, the last token together with the pending one.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import mlx.core as mx

from scheduler.round import BlockCopy, Row, SlotCopy

from ..batch import Batch, Window
from ..certain_run import run_certain
from ..forward import Forward
from ..prepared import Prepared
from ..view import BatchView
from .chain import Chain
from .drafter import Choose, Drafter, TokensOf
from .filled_blocks import FilledBlocks

AT_ONCE = 1  # tokens behind that run together with the pending one
CHUNK = 512  # tokens of a row that are caught up at a time
PLAIN_FOR_NOW = 8  # rounds without drafts after which prompts wait until somebody drafts
MOST_TOKENS = 2048  # of all rows, with what they are padded to


class LatePeerDrafter(Drafter):
    """A draft model over pages of its own, numbered like the target's."""

    name = "peer"

    def __init__(
        self, forward: Forward, ready: Prepared, *, num_blocks: int, target_vocab_size: int
    ) -> None:
        self.forward = forward
        self.block_size = ready.block_size
        self.store = ready.make_store(num_blocks, 0)
        self.filled = FilledBlocks(ready.block_size)
        self.target_vocab_size = target_vocab_size
        self._tokens_of: TokensOf | None = None
        self._num_plain = 0  # rounds of decoding rows since any had drafts
        self._ran: dict[int, int] = {}  # positions each row's drafting steps ran, from its start

    def attach(self, tokens_of: TokensOf) -> None:
        self._tokens_of = tokens_of

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """Run what rows are behind and the pending token, then each draft but the last."""
        rows = sorted(rows, key=lambda row: (-row.num_drafts, -row.start))
        for row in rows:
            self.filled.begin(row.blocks, row.start)
        self._catch_up(rows)
        self._ran = {row.seq_id: row.num_drafts for row in rows}
        seq_ids = [row.seq_id for row in rows]
        chain = Chain()
        tokens, windows = mx.array([0]), [self._first_window(row) for row in rows]
        for step in range(rows[0].num_drafts):
            count = sum(row.num_drafts > step for row in rows)
            if step:
                rows, tokens = rows[:count], tokens[:count]
                windows = [_later_window(row, row.start + step) for row in rows]
            view = BatchView(Batch(windows, self.block_size, keep_order=True))
            ids = tokens[:, None] if step else view.batch.tokens()
            caches = self.store.open(view)
            hidden = self.forward.hidden(ids, caches)
            last = hidden[mx.arange(count), mx.array(view.batch.lengths - 1)]
            logits = self.forward.logits(last)[:, : self.target_vocab_size]
            tokens = choose(seq_ids[:count], chain, logits)
            mx.eval(tokens, self.store.pending(caches))
            self.store.store(view, caches)
            chain.add(tokens)
        return dict(zip(seq_ids, chain.all(), strict=True))

    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Note what drafting steps have run; run prompts while rows draft."""
        windows = view.batch.windows
        for window, count in zip(windows, kept, strict=True):
            row = window.row
            self.filled.begin(row.blocks, row.start)
            if window.drafts and (ran := self._ran.get(row.seq_id)):
                self.filled.fill(row.blocks, row.start, row.start + min(ran, count))
        if all(len(row.tokens) == 1 and row.samples for row in view.rows):
            has_drafts = any(window.drafts for window in windows)
            self._num_plain = 0 if has_drafts else self._num_plain + 1
        elif self._num_plain < PLAIN_FOR_NOW:
            self._run([window.row for window in windows if self._is_next(window.row)])

    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        self.store.copy(blocks, ())
        for block in blocks:
            self.filled.copy(block.source, block.target)

    def _is_next(self, row: Row) -> bool:
        return self.filled.end(row.blocks, row.start) == row.start

    def _catch_up(self, rows: Sequence[Row]) -> None:
        """Run what rows are behind, but for the last token; shared blocks run once."""
        assert self._tokens_of is not None, "attach() says where the tokens are"
        while True:
            parts: list[Row] = []
            taken: set[int] = set()
            for row in rows:
                end = self.filled.end(row.blocks, row.start)
                first = row.blocks[end // self.block_size]
                if row.start - end <= AT_ONCE or first in taken:
                    continue
                taken.add(first)
                tokens = self._tokens_of(row.seq_id)[end : min(end + CHUNK, row.start)]
                blocks = row.blocks[: -(-(end + len(tokens)) // self.block_size)]
                parts.append(Row(row.seq_id, tuple(tokens), end, blocks, samples=False))
            if not parts:
                return
            self._run(parts)

    def _run(self, parts: Sequence[Row]) -> None:
        """Run rows of certain tokens, those of similar length together."""
        parts = sorted(parts, key=lambda part: -len(part.tokens))
        cuts = [0]
        for number, _ in enumerate(parts):
            width, count = len(parts[cuts[-1]].tokens), number + 1 - cuts[-1]
            if count > 1 and width * count > MOST_TOKENS:
                cuts.append(number)
        for first, last in pairwise([*cuts, len(parts)]):
            windows = [Window(part) for part in parts[first:last]]
            run_certain(self.forward, self.store, windows, self.block_size)
        for part in parts:
            self.filled.fill(part.blocks, part.start, part.certain_end)

    def _first_window(self, row: Row) -> Window:
        """The pending token and what is behind of the tokens before it."""
        assert self._tokens_of is not None
        end = self.filled.end(row.blocks, row.start)
        behind = tuple(self._tokens_of(row.seq_id)[end : row.start])
        blocks = row.blocks[: row.start // self.block_size + 1]
        return Window(Row(row.seq_id, (*behind, *row.tokens), end, blocks))


def _later_window(row: Row, start: int) -> Window:
    """One drafted token, whose id is on the device."""
    return Window(Row(row.seq_id, (0,), start, row.blocks))
