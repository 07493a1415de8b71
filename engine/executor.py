"""Turns a Round into verdicts: copies, forward passes, picks, and what is kept of them.

Prompt chunks and decode windows run as separate batches, since all rows of a batch are padded to
its longest window. Each batch is evaluated, then stored, before the next one begins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from scheduler.depth import Found
from scheduler.round import Round, Row, Verdict

from .batch import Batch, Window
from .certain_run import run_certain
from .drafting.drafter import Choose, Drafter, TokensOf
from .forward import Forward
from .phases import Phases
from .store import Store
from .view import BatchView


@dataclass(frozen=True, slots=True)
class Wanted:
    """A position at which a token is to be picked: after ``num_ahead`` drafts of a window."""

    window: Window
    num_ahead: int


Pick = Callable[[Sequence[Wanted], mx.array], Sequence[int]]
"""Choose a token for each wanted position from logits (positions, vocabulary)."""

Listen = Callable[[Row, mx.array, Callable[[mx.array], mx.array]], None]
"""Look at a row's certain tokens: hidden states (tokens, size), and the head that makes logits."""

Affordable = Callable[[int, Sequence[Found]], int]
"""How many of the drafts in hand a row may run: (rows, those of each row that has any) -> most."""


class Executor:
    """Runs rounds on one model."""

    def __init__(
        self, forward: Forward, store: Store, block_size: int, drafter: Drafter | None = None
    ) -> None:
        self.forward = forward
        self.store = store
        self.block_size = block_size
        self.drafter = drafter
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
                batch = Batch(group, self.block_size, round_.groups)
                for verdict in self._run_batch(batch, pick, listen):
                    verdicts[verdict.seq_id] = verdict
        return [verdicts[row.seq_id] for row in round_.rows]

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
        if self.drafter is not None:
            self.drafter.forget(seq_id)

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
        view = BatchView(batch)
        caches = self.store.open(view)
        hidden = self.forward.hidden(batch.tokens(), caches)
        pending = self.store.pending(caches)
        if self.drafter is not None:
            with self.phases.during("draft"):
                pending += self.drafter.look(view, hidden)
        wanted, places = _wanted(batch)
        tokens: Sequence[int] = ()
        if wanted:
            lines = hidden.reshape(-1, hidden.shape[-1])
            if len(places) < lines.shape[0]:
                lines = lines[mx.array(places)]
            logits = self.forward.logits(lines)
            self._evaluate(logits, pending)
            with self.phases.during("sample"):
                tokens = pick(wanted, logits)
        else:
            self._evaluate(hidden, pending)
        if listen is not None:
            for number, window in enumerate(batch.windows):
                certain = hidden[number, : len(window.row.tokens)]
                listen(window.row, certain, self.forward.logits)
        verdicts = _judge(batch, wanted, tokens)
        view.kept = [
            len(window.row.tokens) + verdict.num_accepted
            for window, verdict in zip(batch.windows, verdicts, strict=True)
        ]
        again = self.store.to_run_again(batch.windows, view.kept)
        with self.phases.during("device"):
            self.store.store(view, caches)
            run_certain(self.forward, self.store, again, self.block_size)
        if self.drafter is not None:
            with self.phases.during("draft"):
                self.drafter.follow(view, hidden, view.kept)
        return verdicts

    def _evaluate(self, output: mx.array, pending: Sequence[mx.array]) -> None:
        with self.phases.during("device"):
            mx.eval(output, pending)


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
