"""A batch that the model has taken: what came of it, and what of its windows stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from scheduler.round import Verdict

from .batch import Batch, Window
from .drafting.offer import Unjudged
from .sampling import Picks
from .view import BatchView
from .voice import Wanted


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """A batch that the model has taken, and what has not been kept of it yet."""

    view: BatchView
    caches: list[Any]
    hidden: mx.array  # (rows, width, size)
    wanted: list[Wanted]
    output: mx.array  # logits (wanted positions, vocabulary), or hidden where none is wanted
    pending: list[mx.array]  # to evaluate before anything is kept


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A batch with drafts that is launched and not judged yet."""

    run: ForwardPass
    picks: Picks
    drafts: list[mx.array]  # one array (rows, most drafts), or none where windows know theirs

    def windows(self) -> list[Window]:
        """Return the windows with their drafts. Evaluates."""
        windows = self.run.view.batch.windows
        if not self.drafts:
            return windows
        lines: list[list[int]] = self.drafts[0].tolist()  # type: ignore[assignment]  # of int32s
        pairs = zip(windows, lines, strict=True)
        return [Window(one.row, tuple(line[: len(one.drafts)])) for one, line in pairs]

    @property
    def is_even(self) -> bool:
        """Whether each window is of as many drafts that only the device knows."""
        batch = self.run.view.batch
        return bool(self.drafts) and not batch.is_ragged

    def unjudged(self) -> Unjudged:
        """Accept drafts on the device, by the rule of ``judge``; windows are even."""
        batch, hidden = self.run.view.batch, self.run.hidden
        tokens = self.picks.tokens.reshape(batch.size, batch.width)
        same = tokens[:, :-1] == self.drafts[0][:, : batch.width - 1].astype(mx.uint32)
        accepted = mx.cumprod(same.astype(mx.int32), axis=1).sum(axis=1)
        following = mx.take_along_axis(tokens, accepted[:, None], axis=1)[:, 0]
        return Unjudged(self.run.view.rows, batch.width - 1, hidden, accepted, following)


def wanted_of(batch: Batch) -> tuple[list[Wanted], list[int]]:
    """Positions to pick tokens at, and where their hidden states lie in (rows * width)."""
    wanted, places = [], []
    for number, window in enumerate(batch.windows):
        if window.row.samples:
            last_certain = number * batch.width + len(window.row.tokens) - 1
            for num_ahead in range(len(window.drafts) + 1):
                wanted.append(Wanted(window, num_ahead))
                places.append(last_certain + num_ahead)
    return wanted, places


def judge(
    windows: Sequence[Window], wanted: Sequence[Wanted], tokens: Sequence[int]
) -> list[Verdict]:
    """Accept each window's drafts up to the first that the target did not pick."""
    picks: dict[int, list[int]] = {}
    for want, token in zip(wanted, tokens, strict=True):
        picks.setdefault(want.window.row.seq_id, []).append(int(token))
    verdicts = []
    for window in windows:
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
