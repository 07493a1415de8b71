"""Turns a Round into verdicts: copies, forward passes, picks, and what is kept of them.

Prompt chunks and decode windows run as separate batches, since all rows of a batch are padded to
its longest window. Each batch is evaluated, then stored, before the next one begins.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from scheduler.depth import Found
from scheduler.round import UNKNOWN, Round, Row, Verdict

from .batch import Batch, Tables, Window
from .certain_run import run_certain
from .drafting.drafter import Choose, Drafter, TokensOf
from .forward import Forward
from .phases import Phases
from .sampling import Picked, Picks
from .store import Store
from .unread import Unread
from .view import BatchView


@dataclass(frozen=True, slots=True)
class Wanted:
    """A position at which a token is to be picked: after ``num_ahead`` drafts of a window."""

    window: Window
    num_ahead: int


Pick = Callable[[Sequence[Wanted], mx.array], Sequence[int]]
"""Choose a token for each wanted position from logits (positions, vocabulary)."""

Begin = Callable[[Sequence[Wanted], mx.array], Picks]
"""The same, but what is chosen stays on the device until it is read."""

Take = Callable[[int, Picked], int]
"""Keep what was picked for a sequence, by its id; return the token."""

Listen = Callable[[Row, mx.array, Callable[[mx.array], mx.array]], None]
"""Look at a row's certain tokens: hidden states (tokens, size), and the head that makes logits."""

Affordable = Callable[[int, Sequence[Found]], int]
"""How many of the drafts in hand a row may run: (rows, those of each row that has any) -> most."""

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
        for rows in _split(round_.rows):
            drafts = self._propose(rows, choose)
            windows = [Window(row, drafts.get(row.seq_id, ())) for row in rows]
            for group in self.store.divide(windows):
                batch = self._batch(group, round_)
                for verdict in self._run_batch(batch, pick, listen):
                    verdicts[verdict.seq_id] = verdict
        return [verdicts[row.seq_id] for row in round_.rows]

    def launch(self, round_: Round, begin: Begin, listen: Listen | None = None) -> None:
        """Let all rows of ``round_`` run that do not run already; their picks stay unread.

        The layers must take batches in order: where kernels do not, each batch is waited for. The
        token of a row may be unknown: it is what was picked by the launched row before it. No row
        drafts anything.
        """
        if not self.in_order:
            with self.phases.during("device"):
                self.store.copy(round_.block_copies, round_.slot_copies)
        elif round_.block_copies or round_.slot_copies:
            _start(self.store.copies(round_.block_copies, round_.slot_copies))
        for rows in _split([row for row in round_.rows if not row.launched]):
            for group in self.store.divide([Window(row) for row in rows]):
                self._launch_batch(self._batch(group, round_), begin, listen)

    def read(self, round_: Round, take: Take) -> list[Verdict]:
        """Wait for the picks of a launched round; return verdicts in the order of its rows.

        A round of prompt chunks alone tells nothing; what is waited for then is the one before it.
        """
        found = self.unread.pop(row for row in round_.rows if row.samples)
        with self.phases.during("device"):
            mx.eval([picks.arrays for picks in {picks for picks, _ in found.values()}])
            if not found:
                mx.eval(self._behind)
            self._behind, self._unpicked = self._unpicked, []
        with self.phases.during("sample"):
            tokens = {
                seq_id: take(seq_id, picks.read()[number])
                for seq_id, (picks, number) in found.items()
            }
        return [
            Verdict(row.seq_id, (tokens[row.seq_id],) if row.samples else ()) for row in round_.rows
        ]

    def keep(self, rows: Iterable[Row]) -> None:
        """Forget what was launched but for these rows: nobody is going to read it."""
        self.unread.keep(rows)

    def undo(self, rows: Iterable[Row]) -> None:
        """Forget a round that failed, which must never be evaluated again, and all but ``rows``."""
        self.keep(rows)
        self._behind, self._unpicked = [], []

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

    def _batch(self, windows: Sequence[Window], round_: Round) -> Batch:
        return Batch(windows, self.block_size, round_.groups, tables=self._tables)

    def _propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        if self.drafter is None:
            return {}
        sizes = [self.store.num_drafts(row, self.block_size) for row in rows]
        drafting = [
            replace(row, num_drafts=size) for row, size in zip(rows, sizes, strict=True) if size
        ]
        if not drafting:
            return {}
        with self.phases.during("draft"):
            drafts = self.drafter.propose(drafting, choose)
        if self.affordable is None or not self.drafter.is_free:
            return drafts
        evidence = self.drafter.evidence
        found = [Found(seq_id, said, evidence(seq_id)) for seq_id, said in drafts.items()]
        most = self.affordable(len(rows), found)
        return {seq_id: said[:most] for seq_id, said in drafts.items()}

    def _run_batch(self, batch: Batch, pick: Pick, listen: Listen | None = None) -> list[Verdict]:
        run = self._forward(batch, batch.tokens())
        with self.phases.during("device"):
            mx.eval(run.output, run.pending)
        tokens: Sequence[int] = ()
        if run.wanted:
            with self.phases.during("sample"):
                tokens = pick(run.wanted, run.output)
        self._show(run, listen)
        verdicts = _judge(batch, run.wanted, tokens)
        run.view.kept = [
            len(window.row.tokens) + verdict.num_accepted
            for window, verdict in zip(batch.windows, verdicts, strict=True)
        ]
        self._store(run)
        if self.drafter is not None:
            with self.phases.during("draft"):
                self.drafter.follow(run.view, run.hidden, run.view.kept)
        return verdicts

    def _launch_batch(self, batch: Batch, begin: Begin, listen: Listen | None = None) -> None:
        run = self._forward(batch, self._tokens_of(batch))
        if not self.in_order:
            with self.phases.during("device"):
                mx.eval(run.output, run.pending)
        if run.wanted:
            with self.phases.during("sample"):
                picks = begin(run.wanted, run.output)
                _start(picks.arrays, run.pending)  # by one launch, as far as that goes
            for number, want in enumerate(run.wanted):
                self.unread.add(want.window.row, picks, number)
        else:
            _start(run.output, run.pending)
            self._unpicked.append(run.hidden)
        self._show(run, listen)
        self._store(run)

    def _tokens_of(self, batch: Batch) -> mx.array:
        """Token ids, (rows, width); those launched ahead take theirs from what is unread."""
        rows = [window.row for window in batch.windows]
        if all(row.tokens != (UNKNOWN,) for row in rows):
            return batch.tokens()
        return self.unread.before(rows)

    def _forward(self, batch: Batch, tokens: mx.array) -> "_Pass":
        """Run a batch up to the logits at the positions that are wanted; nothing is evaluated."""
        view = BatchView(batch)
        caches = self.store.open(view)
        hidden = self.forward.hidden(tokens, caches)
        pending = self.store.pending(caches)
        if self.drafter is not None:
            with self.phases.during("draft"):
                pending += self.drafter.look(view, hidden)
        wanted, places = _wanted(batch)
        output = hidden
        if wanted:
            lines = hidden.reshape(-1, hidden.shape[-1])
            if len(places) < lines.shape[0]:
                lines = lines[mx.array(places)]
            output = self.forward.logits(lines)
        return _Pass(view, caches, hidden, wanted, output, pending)

    def _show(self, run: "_Pass", listen: Listen | None) -> None:
        if listen is not None:
            for number, window in enumerate(run.view.batch.windows):
                certain = run.hidden[number, : len(window.row.tokens)]
                listen(window.row, certain, self.forward.logits)

    def _store(self, run: "_Pass") -> None:
        """Keep what the batch may keep, now that its view says how much that is."""
        again = self.store.to_run_again(run.view.batch.windows, run.view.kept)
        with self.phases.during("device"):
            self.store.store(run.view, run.caches)
            run_certain(self.forward, self.store, again, self.block_size)


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """A batch that the model has taken, and what has not been kept of it yet."""

    view: BatchView
    caches: list[Any]
    hidden: mx.array  # (rows, width, size)
    wanted: list[Wanted]
    output: mx.array  # logits (wanted positions, vocabulary), or hidden where none is wanted
    pending: list[mx.array]  # to evaluate before anything is kept


def _split(rows: Sequence[Row]) -> list[list[Row]]:
    """Prompt chunks apart from decode windows; either part may be missing."""
    chunks = [row for row in rows if len(row.tokens) > 1 or not row.samples]
    windows = [row for row in rows if not (len(row.tokens) > 1 or not row.samples)]
    return [part for part in (chunks, windows) if part]


def _wanted(batch: Batch) -> tuple[list[Wanted], list[int]]:
    """Positions to pick tokens at, and where their hidden states lie in (rows * width)."""
    wanted, places = [], []
    for number, window in enumerate(batch.windows):
        if window.row.samples:
            last_certain = number * batch.width + len(window.row.tokens) - 1
            for num_ahead in range(len(window.drafts) + 1):
                wanted.append(Wanted(window, num_ahead))
                places.append(last_certain + num_ahead)
    return wanted, places


def _judge(batch: Batch, wanted: Sequence[Wanted], tokens: Sequence[int]) -> list[Verdict]:
    """Accept each window's drafts up to the first that the target did not pick."""
    picks: dict[int, list[int]] = {}
    for want, token in zip(wanted, tokens, strict=True):
        picks.setdefault(want.window.row.seq_id, []).append(int(token))
    verdicts = []
    for window in batch.windows:
        seq_id, drafts = window.row.seq_id, window.drafts
        if not window.row.samples:
            verdicts.append(Verdict(seq_id))
            continue
        chosen = picks[seq_id]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
            accepted += 1
        gained = tuple(chosen[: accepted + 1])
        verdicts.append(Verdict(seq_id, gained, len(drafts), accepted))
    return verdicts
