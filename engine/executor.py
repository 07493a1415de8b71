"""Turns a Round into verdicts: copies, forward passes, picks, and what is kept of them.

Prompt chunks and decode windows run as separate batches, since all rows of a batch are padded to
its longest window. Each batch is evaluated, then stored, before the next one begins.
"""

from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx

from scheduler.round import UNKNOWN, Round, Row, Verdict

from .batch import Batch, Tables, Window
from .certain_run import run_certain
from .drafting.drafter import Choose, Drafter, TokensOf
from .drafting.offer import Offer
from .drafting.proposer import Affordable, Proposer
from .drafts_in_flight import Drafted, DraftsInFlight
from .forward import Forward
from .forward_pass import ForwardPass, judge, wanted_of
from .phases import Phases
from .readback import Readback
from .store import Store
from .unread import Unread
from .view import BatchView
from .voice import Listen, Pick, Voice

_start: Callable[..., None] = mx.async_eval  # mlx does not type it


class Executor:
    """Runs rounds on one model."""

    def __init__(
        self,
        forward: Forward,
        store: Store,
        block_size: int,
        drafter: Drafter | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self.forward = forward
        self.store = store
        self.block_size = block_size
        self.drafter = drafter
        self.in_order = in_order  # see Backend.runs_in_order
        self.unread = Unread()
        self._tables = Tables()
        # Hidden states of batches without picks: of the round being launched, and of the last.
        self._unpicked: list[mx.array] = []
        self._behind: list[mx.array] = []
        self._judged: dict[int, Verdict] = {}  # of the round being launched, by sequence
        self._drafts = DraftsInFlight()
        self.phases = Phases()
        self.affordable: Affordable | None = None

    def run(
        self, round_: Round, pick: Pick, choose: Choose, listen: Listen | None = None
    ) -> list[Verdict]:
        """Run all rows of ``round_``; return verdicts in the order of its rows.

        ``pick`` decides what the target says, ``choose`` what the drafter proposes; ``listen`` is
        shown every row.
        """
        with self.phases.during("device"):
            self.store.copy(round_.block_copies, round_.slot_copies)
        if self.drafter is not None:
            self.drafter.copy(round_.block_copies, round_.slot_copies)
        verdicts: dict[int, Verdict] = {}
        for rows, decodes in _split(round_.rows):
            with self.phases.during("draft"):
                windows, _ = self._proposer.windows(rows, choose)
            for group in self.store.divide(windows):
                batch = self._batch(group, round_, decodes=decodes)
                for verdict in self._run_batch(batch, pick, listen):
                    verdicts[verdict.seq_id] = verdict
        return [verdicts[row.seq_id] for row in round_.rows]

    def launch(self, round_: Round, voice: Voice) -> bool:
        """Let all rows of ``round_`` run that do not run already; what comes of them stays unread.

        Return whether any of them runs drafts.

        The layers must take batches in order: where kernels do not, each batch is waited for. The
        token of a row may be unknown: it is what was picked by the launched row before it. Drafts,
        too, may be known on the device alone.
        """
        block_copies, slot_copies = round_.block_copies, round_.slot_copies
        if not self.in_order:
            with self.phases.during("device"):
                self.store.copy(block_copies, slot_copies)
        elif block_copies or slot_copies:
            _start(self.store.copies(block_copies, slot_copies))
        if self.drafter is not None and (block_copies or slot_copies):
            self.drafter.copy(block_copies, slot_copies)
        ready, drafts = self._drafts.take_following(), False
        for rows, decodes in _split([row for row in round_.rows if not row.launched]):
            windows, offer = self._windows(rows, voice, ready)
            for group in self.store.divide(windows):
                batch = self._batch(group, round_, decodes=decodes)
                drafts = drafts or batch.has_drafts
                if not batch.has_drafts:
                    self._launch_batch(batch, voice)
                elif self._may_defer:
                    self._launch_drafts(batch, voice, offer)
                else:
                    for verdict in self._run_batch(batch, voice.pick, voice.listen):
                        self._judged[verdict.seq_id] = verdict
        return drafts

    def _windows(
        self, rows: Sequence[Row], voice: Voice, ready: Offer | None
    ) -> tuple[list[Window], Offer | None]:
        """Windows that may be launched before their drafts are known, if any are to have some."""
        for row in rows:
            if row.num_drafts:
                break
        else:
            return [Window(row) for row in rows], None
        may_wait = self._may_defer and not voice.needs_drafts(row.seq_id for row in rows)
        with self.phases.during("draft"):
            choose = voice.choose_for(row.seq_id for row in rows) if may_wait else voice.choose
            return self._proposer.windows(rows, choose, may_wait=may_wait, ready=ready)

    def read(self, round_: Round, voice: Voice) -> list[Verdict]:
        """Wait for what comes of a launched round; return verdicts in the order of its rows.

        A round of prompt chunks alone tells nothing; what is waited for then is the one before it.
        """
        judged, self._judged = self._judged, {}
        drafted = self._drafts.take()
        there = {*judged, *(row.seq_id for one in drafted for row in one.run.view.rows)}
        found = self.unread.pop(
            row for row in round_.rows if row.samples and row.seq_id not in there
        )
        picked = {picks for picks, _ in found.values()} | {one.picks for one in drafted}
        with self.phases.during("device"):
            mx.eval(
                [picks.arrays for picks in picked],
                [one.tokens.array for one in drafted if one.tokens is not None],
            )
            if not (found or there):
                mx.eval(self._behind)
            self._behind, self._unpicked = self._unpicked, []
        with self.phases.during("sample"):
            for seq_id, (picks, number) in found.items():
                judged[seq_id] = Verdict(seq_id, (voice.take(seq_id, picks.read()[number]),))
        for one in drafted:
            with self.phases.during("sample"):
                verdicts = self._drafts.judge(one, voice)
            judged |= {verdict.seq_id: verdict for verdict in self._keep(one.run, verdicts)}
        return [judged.get(row.seq_id) or Verdict(row.seq_id) for row in round_.rows]

    def keep(self, rows: Iterable[Row]) -> None:
        """Forget what was launched but for these rows: nobody is going to read it."""
        self.unread.keep(rows)

    def undo(self, round_: Round, rows: Iterable[Row]) -> None:
        """Forget a round that failed, which must never be evaluated again, and all but ``rows``."""
        self.keep(rows)
        self.forward.undo()
        self._behind, self._unpicked = [], []
        self._judged.clear()
        self._drafts.clear()
        if self.drafter is not None:
            self.drafter.undo(round_.rows)

    def attach(
        self,
        tokens_of: TokensOf,
        phases: Phases | None = None,
        affordable: Affordable | None = None,
    ) -> None:
        """Tell the drafter, if there is one, where the tokens of a sequence are found.

        ``phases`` is charged with the time that rounds take; ``affordable`` says how many of the
        drafts that cost nothing to make are worth running.
        """
        self.phases = phases or self.phases
        self.affordable = affordable
        if self.drafter is not None:
            self.drafter.attach(tokens_of)

    def forget(self, seq_id: int) -> None:
        """A sequence has ended."""
        self.unread.forget(seq_id)
        self._tables.forget(seq_id)
        if self.drafter is not None:
            self.drafter.forget(seq_id)

    @property
    def _may_defer(self) -> bool:
        """Whether windows with drafts may be launched before it is known what of them to keep."""
        return self.in_order and not self.store.cuts

    @property
    def _proposer(self) -> Proposer:
        return Proposer(self.drafter, self.store, self.block_size, self.affordable)

    def _batch(self, windows: Sequence[Window], round_: Round, *, decodes: bool) -> Batch:
        return Batch(
            windows,
            self.block_size,
            round_.groups,
            by_length=not (self.in_order and decodes),  # else it would change as rows grow
            tables=self._tables,
        )

    def _run_batch(self, batch: Batch, pick: Pick, listen: Listen | None = None) -> list[Verdict]:
        run = self._forward(batch)
        with self.phases.during("device"):
            mx.eval(run.output, run.pending)
        tokens: Sequence[int] = ()
        if run.wanted:
            with self.phases.during("sample"):
                tokens = pick(run.wanted, run.output)
        self._show(run, listen)
        return self._keep(run, judge(batch.windows, run.wanted, tokens))

    def _keep(self, run: ForwardPass, verdicts: list[Verdict]) -> list[Verdict]:
        """Store what of a batch was accepted; return the verdicts."""
        run.view.kept = [
            len(row.tokens) + verdict.num_accepted
            for row, verdict in zip(run.view.rows, verdicts, strict=True)
        ]
        self._store(run)
        return verdicts

    def _launch_batch(self, batch: Batch, voice: Voice) -> None:
        run = self._forward(batch, self._tokens_of(batch))
        if not self.in_order:
            with self.phases.during("device"):
                mx.eval(run.output, run.pending)
        if run.wanted:
            with self.phases.during("sample"):
                picks = voice.begin(run.wanted, run.output)
                _start(picks.arrays, run.pending)  # by one launch, as far as that goes
            for number, want in enumerate(run.wanted):
                self.unread.add(want.window.row, picks, number)
        else:
            _start(run.output, run.pending)
            self._unpicked.append(run.hidden)
        self._show(run, voice.listen)
        self._store(run)

    def _launch_drafts(self, batch: Batch, voice: Voice, offer: Offer | None) -> None:
        """Launch windows with drafts, which may be unread; they are judged when they are read."""
        sent: Readback | None = None
        tokens: mx.array | None = None
        if offer is not None:
            with self.phases.during("draft"):
                tokens = self._offered(batch, offer)
                sent = Readback(tokens)
        run = self._forward(batch, tokens)
        with self.phases.during("sample"):
            picks = voice.begin(run.wanted, run.output)
            _start(picks.arrays, run.pending, [] if sent is None else sent.array)
        self._show(run, voice.listen)
        one = Drafted(run, picks, sent)
        self._drafts.add(one)
        if sent is not None and voice.is_settled(row.seq_id for row in run.view.rows):
            assert self.drafter is not None
            with self.phases.during("draft"):
                before = one.unjudged()
                following = self.drafter.begin_after(before, voice.choose_after(before))
                self._drafts.follow(following)
                if following is not None:
                    _start(following.arrays)

    def _offered(self, batch: Batch, offer: Offer) -> mx.array:
        """Token ids, (rows, width) int32, of windows whose drafts ``offer`` has."""
        seq_ids = [window.row.seq_id for window in batch.windows]
        tokens = offer.windows(seq_ids, batch.width)
        if tokens is None:
            drafts = offer.tokens(seq_ids)
            _start(drafts)  # the device begins while the host builds what follows
            tokens = mx.concatenate([batch.tokens()[:, :1], drafts], axis=1)[:, : batch.width]
        return tokens

    def _tokens_of(self, batch: Batch) -> mx.array | None:
        """Token ids, (rows, width), of rows launched ahead: taken from what is unread."""
        rows = batch.rows
        if all(row.tokens != (UNKNOWN,) for row in rows):
            return None
        return self.unread.before(rows)

    def _forward(self, batch: Batch, tokens: mx.array | None = None) -> ForwardPass:
        """Run a batch up to the logits at the positions that are wanted; nothing is evaluated."""
        view = BatchView(batch, tokens)
        caches = self.store.open(view)
        hidden = self.forward.hidden(view.tokens, caches)
        pending = self.store.pending(caches)
        wanted, places = wanted_of(batch)
        output = hidden
        if wanted:
            lines = hidden.reshape(-1, hidden.shape[-1])
            if len(places) < lines.shape[0]:
                lines = lines[mx.array(places)]
            output = self.forward.logits(lines)
        is_left = True
        if self.drafter is not None:
            is_plain = batch.width == 1 and len(wanted) == batch.size
            if not (is_plain and self.drafter.leave(view, hidden)):
                is_left = False
                with self.phases.during("draft"):
                    pending += self.drafter.look(view, hidden)
        return ForwardPass(view, caches, hidden, wanted, output, pending, is_left)

    def _show(self, run: ForwardPass, listen: Listen | None) -> None:
        if listen is not None:
            for number, window in enumerate(run.view.batch.windows):
                certain = run.hidden[number, : len(window.row.tokens)]
                listen(window.row, certain, self.forward.logits)

    def _store(self, run: ForwardPass) -> None:
        """Keep what the batch may keep, now that its view says how much that is."""
        again = self.store.to_run_again(run.view.batch.windows, run.view.kept)
        with self.phases.during("device"):
            self.store.store(run.view, run.caches)
            run_certain(self.forward, self.store, again, self.block_size)
        if not run.is_left:
            assert self.drafter is not None
            with self.phases.during("draft"):
                self.drafter.follow(run.view, run.hidden, run.view.kept)


def _split(rows: Sequence[Row]) -> list[tuple[list[Row], bool]]:
    """Prompt chunks apart from windows, which decode; either part may be missing."""
    chunks: list[Row] = []
    windows: list[Row] = []
    for row in rows:
        (windows if row.decodes else chunks).append(row)
    return [(part, part is windows) for part in (chunks, windows) if part]
