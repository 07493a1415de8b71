"""Windows whose drafts are launched and not judged yet, and the drafts that are to follow them."""

from dataclasses import dataclass

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
    tokens: Readback | None  # (rows, width) int32; None where windows know their drafts

    def windows(self) -> list[Window]:
        """Return the windows with their drafts. Evaluates."""
        windows = self.run.view.batch.windows
        if self.tokens is None:
            return windows
        pairs = zip(windows, self.tokens.read(), strict=True)
        return [Window(one.row, tuple(line[1 : one.length])) for one, line in pairs]

    def unjudged(self) -> Unjudged:
        """Return what it takes to go on from there on the device."""
        assert self.tokens is not None
        run = self.run
        return Unjudged(run.view.batch, run.hidden, self.picks.tokens, self.tokens.numbers)


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
