"""Drafts with a smaller model over memory numbered like the target's: it runs only when it drafts.

While nobody drafts it runs nothing, neither tokens nor new prompts, and its memory falls behind:
blocks say how far they are filled, slots how many tokens their states have taken in. A row that
drafts is caught up first: what is far behind in chunks of its own, the last tokens together with
the pending one.

    ran ............. start | pending | draft | draft
       caught up, in the row's slot ^   ^ steps, in a scratch slot

So a slot holds certain tokens only, nothing is ever folded into it, and what a round has rejected
is not there.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import mlx.core as mx
from mlx import nn

from scheduler.round import BlockCopy, Capture, Row, SlotCopy

from ..batch import Batch, Window
from ..certain_run import run_certain
from ..forward import Forward
from ..prepared import Prepared
from ..view import BatchView
from .chain import Chain
from .drafter import Choose, Drafter, TokensOf
from .filled_blocks import FilledBlocks

AT_ONCE = 1  # tokens behind that run together with the pending one: K/V of the last draft
AT_ONCE_WITH_STATES = 8  # likewise, where no draft of the last round is part of the state
CHUNK = 512  # tokens of a row that are caught up at a time
PLAIN_FOR_NOW = 8  # rounds without drafts after which prompts wait until somebody drafts
NEAR = 64  # tokens behind from which a prompt is run on at once, and a checkpoint worth keeping
MOST_LEFT = 64  # rounds without drafts that are looked at together
MOST_TOKENS = 2048  # of all rows, with what they are padded to


class PeerForward(Forward):
    """A peer's forward pass, for tokens of a larger vocabulary too."""

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        super().__init__(model)
        self.vocab_size = vocab_size

    def hidden(self, tokens: mx.array, caches: Sequence[object]) -> mx.array:
        """As of any model; a token that the peer does not know counts as its token 0."""
        return super().hidden(mx.where(tokens < self.vocab_size, tokens, 0), caches)


class PeerDrafter(Drafter):
    """A draft model over pages, and over slots if it has states."""

    name = "peer"

    def __init__(
        self,
        forward: Forward,
        ready: Prepared,
        *,
        num_blocks: int,
        num_slots: int,
        max_rows: int,
        target_vocab_size: int,
    ) -> None:
        self.forward = forward
        self.block_size = ready.block_size
        self.has_states = ready.bytes_per_slot > 0
        self.first_scratch = num_slots
        self.store = ready.make_store(num_blocks, num_slots + max_rows if self.has_states else 0)
        self.filled = FilledBlocks(ready.block_size)
        self.target_vocab_size = target_vocab_size
        self._in_state: dict[int, int] = {}  # tokens that a slot's state has taken in
        self._at_once = AT_ONCE_WITH_STATES if self.has_states else AT_ONCE
        if self.store.cuts or not self.store.method.pads:
            self._at_once = 0  # first steps are then of one token each
        self._tokens_of: TokensOf | None = None
        self._left: list[Sequence[Row]] = []  # of rounds without drafts that nobody looked at
        self._num_plain = 0  # rounds of decoding rows since any had drafts
        self._ran: dict[int, int] = {}  # positions each row's drafting steps ran, from its start

    def attach(self, tokens_of: TokensOf) -> None:
        self._tokens_of = tokens_of

    def ran(self, blocks: Sequence[int], slot: int | None, most: int) -> int:
        """Return how many leading tokens of a sequence, ``most`` at most, the peer has run."""
        self._see_left()
        return self._has_run(blocks, slot, most)

    def _has_run(self, blocks: Sequence[int], slot: int | None, most: int) -> int:
        filled = self.filled.end(blocks, most)
        if not self.has_states:
            return filled
        in_state = self._in_state.get(slot or 0, 0)
        return in_state if in_state <= filled else 0

    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """Run what rows are behind and the pending token, then each draft but the last."""
        self._see_left()
        rows = sorted(rows, key=lambda row: (-row.num_drafts, -row.start))
        for row in rows:
            self._begin(row)
        self._catch_up(rows)
        self._ran = {row.seq_id: row.num_drafts for row in rows}
        seq_ids, chain = [row.seq_id for row in rows], Chain()
        scratch: Mapping[int, int] = {}
        tokens, windows = mx.array([0]), [Window(self._first(row)) for row in rows]
        for step in range(rows[0].num_drafts):
            count = sum(row.num_drafts > step for row in rows)
            if step:
                rows, tokens = rows[:count], tokens[:count]
                windows = [Window(_later(row, step, scratch)) for row in rows]
            view = BatchView(Batch(windows, self.block_size, keep_order=True))
            ids = tokens[:, None] if step else view.tokens
            caches = self.store.open(view)
            hidden = self.forward.hidden(ids, caches)
            last = hidden[mx.arange(count), mx.array(view.batch.lengths - 1)]
            logits = self.forward.logits(last)[:, : self.target_vocab_size]
            tokens = choose(seq_ids[:count], chain, logits)
            mx.eval(tokens, self.store.pending(caches))
            self.store.store(view, caches)
            chain.add(tokens)
            if not step:
                self._note(view.rows)
                scratch = self._lend_scratch([row for row in rows if row.num_drafts > 1])
        return dict(zip(seq_ids, chain.all(), strict=True))

    def leave(self, view: BatchView, hidden: mx.array) -> bool:
        """Keep the rows as they are: whoever asks what the peer has run looks at them first."""
        if len(self._left) >= MOST_LEFT:
            self._see_left()
        self._left.append(view.rows)
        return True

    def _see_left(self) -> None:
        """Note what the rounds that were left have written, one after the other."""
        left, self._left = self._left, []
        for rows in left:
            self._follow_plain(rows)

    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Note what drafting steps have run; run prompts while rows draft."""
        self._see_left()
        plain = []  # rows without drafts
        for window, count in zip(view.batch.windows, kept, strict=True):
            row = window.row
            if window.drafts:
                ran = min(self._ran[row.seq_id], count)
                self.filled.begin(row.blocks, row.start)
                self.filled.fill(row.blocks, row.start, row.start + ran)
            else:
                self._begin(row)
                plain.append(row)
        if all(row.decodes for row in view.rows):
            has_drafts = len(plain) < len(view.rows)
            self._num_plain = 0 if has_drafts else self._num_plain + 1
        elif self._num_plain < PLAIN_FOR_NOW:
            ends = {row.seq_id: self._end(row) for row in plain}
            near = [row for row in plain if row.start - ends[row.seq_id] <= NEAR]
            self._run([self._part(row, ends[row.seq_id], row.certain_end) for row in near])
            plain = [row for row in plain if row not in near]
        for row in plain:
            self._keep_what_is_there(row)

    def _follow_plain(self, rows: Sequence[Row]) -> None:
        """Rows of one token: one more of a block that a row has begun changes nothing."""
        self._num_plain += 1
        for row in rows:
            if row.start % self.block_size == 0 or row.captures:
                self._begin(row)
                self._keep_what_is_there(row)

    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        if not (blocks or slots):
            return
        self._see_left()
        self.store.copy(blocks, [slot for slot in slots if self._in_state.get(slot.source)])
        for block in blocks:
            self.filled.copy(block.source, block.target)
        for slot in slots:
            self._in_state[slot.target] = self._in_state.get(slot.source, 0)

    def _begin(self, row: Row) -> None:
        """A row's own positions are another's from now on; what it captures is yet to be run."""
        self.filled.begin(row.blocks, row.start)
        if row.slot is not None and row.start == 0:
            self._in_state[row.slot] = 0
        for capture in row.captures:
            self._in_state[capture.slot] = 0

    def _keep_what_is_there(self, row: Row) -> None:
        """The target has run ``row``, the peer has not: its captures get an earlier state."""
        for capture in row.captures:
            in_state = self._in_state.get(row.slot or 0, 0)
            if in_state and capture.position - in_state <= NEAR:
                self.copy((), [SlotCopy(row.slot or 0, capture.slot)])

    def _end(self, row: Row) -> int:
        return self._has_run(row.blocks, row.slot, row.start)

    def _catch_up(self, rows: Sequence[Row]) -> None:
        """Run what rows are behind, but for the last tokens; shared blocks run once."""
        assert self._tokens_of is not None, "attach() says where the tokens are"
        while True:
            parts: list[Row] = []
            taken: set[int] = set()
            for row in rows:
                end = self._end(row)
                first = row.blocks[end // self.block_size]
                if row.start - end <= self._at_once or first in taken:
                    continue
                if not self.has_states:  # each row has a state of its own
                    taken.add(first)
                parts.append(self._part(row, end, min(end + CHUNK, row.start)))
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
        self._note(parts)

    def _note(self, parts: Sequence[Row]) -> None:
        """Keep in mind that rows of certain tokens have run."""
        for part in parts:
            self.filled.fill(part.blocks, part.start, part.certain_end)
            if self.has_states:
                self._in_state[part.slot or 0] = part.certain_end
            for capture in part.captures:
                self._in_state[capture.slot] = capture.position

    def _first(self, row: Row) -> Row:
        """The pending token and what is behind of the tokens before it."""
        return self._part(row, self._end(row), row.certain_end)

    def _part(self, row: Row, start: int, end: int) -> Row:
        """Certain tokens of a row from ``start`` to ``end`` - 1, with what is captured there."""
        assert self._tokens_of is not None
        tokens = tuple(self._tokens_of(row.seq_id)[start : min(end, row.start)])
        tokens += row.tokens[: max(0, end - row.start)]
        blocks = row.blocks[: -(-end // self.block_size)]
        slot = row.slot if self.has_states else None
        captures: tuple[Capture, ...] = ()
        if self.has_states:
            captures = tuple(one for one in row.captures if start < one.position <= end)
        return Row(row.seq_id, tokens, start, blocks, slot, samples=False, captures=captures)

    def _lend_scratch(self, rows: Sequence[Row]) -> Mapping[int, int]:
        """Let each row's later steps begin with its state; return their slots by the rows' own.

        Scratch slots are in the order of the rows' own: rows that lie together stay together.
        """
        if not self.has_states:
            return {}
        slots = sorted(row.slot or 0 for row in rows)
        pairs = {slot: scratch for scratch, slot in enumerate(slots, self.first_scratch)}
        self.store.lend(pairs)
        return pairs


def _later(row: Row, step: int, scratch: Mapping[int, int]) -> Row:
    """One drafted token, whose id is on the device."""
    return Row(row.seq_id, (0,), row.start + step, row.blocks, scratch.get(row.slot or 0))
