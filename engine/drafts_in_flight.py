"""Windows whose drafts are launched and not judged yet, and the drafts that are to follow them."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from scheduler.round import Verdict

from .batch import Window
from .drafting.offer import Offer, Unjudged
from .forward_pass import ForwardPass, judge
from .readback import Readback
from .sampling import Picks
from .voice import Voice


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A batch with drafts that is launched and not judged yet."""

    run: ForwardPass
    picks: Picks
    drafts: Readback | None  # (rows, most drafts); None where windows know theirs

    def windows(self) -> list[Window]:
        """Return the windows with their drafts. Evaluates."""
        windows = self.run.view.batch.windows
        if self.drafts is None:
            return windows
        pairs = zip(windows, self.drafts.read(), strict=True)
        return [Window(one.row, tuple(line[: len(one.drafts)])) for one, line in pairs]

    def unjudged(self) -> Unjudged:
        """Accept drafts on the device, by the rule of ``judge``."""
        assert self.drafts is not None
        batch, hidden = self.run.view.batch, self.run.hidden
        counts = batch.lengths - 1
        most = batch.width - 1
        tokens, drafts = self.picks.tokens, self.drafts.numbers[:, :most].astype(mx.uint32)
        if not batch.is_ragged:
            tokens = tokens.reshape(batch.size, batch.width)
            same = tokens[:, :-1] == drafts
        else:
            firsts = np.cumsum(batch.lengths) - batch.lengths
            inside = np.minimum(np.arange(batch.width), counts[:, None])
            tokens = tokens[mx.array((firsts[:, None] + inside).astype(np.int32))]
            same = (tokens[:, :-1] == drafts) & mx.array(np.arange(most) < counts[:, None])
        accepted = mx.cumprod(same.astype(mx.int32), axis=1).sum(axis=1)
        following = mx.take_along_axis(tokens, accepted[:, None], axis=1)[:, 0]
        return Unjudged(self.run.view.rows, most, hidden, accepted, following)


class DraftsInFlight:
    """The batches with drafts of one round, until it is read."""

    def __init__(self) -> None:
        self._batches: list[Drafted] = []
        self._following: Offer | None = None  # for the next round

    def add(self, one: Drafted) -> None:
        """A batch is launched."""
        self._batches.append(one)

    def follow(self, offer: Offer | None) -> None:
        """Drafts for the next round are launched."""
        self._following = offer

    def take(self) -> list[Drafted]:
        """Hand out the batches: the round is read."""
        batches, self._batches = self._batches, []
        return batches

    def take_following(self) -> Offer | None:
        """Hand out the drafts that were to follow: the next round is launched."""
        offer, self._following = self._following, None
        return offer

    def judge(self, one: Drafted, voice: Voice) -> list[Verdict]:
        """Return the verdicts on a batch; it is then known where drafts that follow are to start.

        Evaluates.
        """
        windows, wanted = one.windows(), one.run.wanted
        tokens = [
            voice.take(want.window.row.seq_id, picked, want.num_ahead)
            for want, picked in zip(wanted, one.picks.read(), strict=True)
        ]
        verdicts = judge(windows, wanted, tokens)
        if self._following is not None:
            for row, verdict in zip(one.run.view.rows, verdicts, strict=True):
                self._following.stand(row.seq_id, row.certain_end + verdict.num_accepted)
        return verdicts

    def clear(self) -> None:
        """Forget a round that failed."""
        self._batches, self._following = [], None
