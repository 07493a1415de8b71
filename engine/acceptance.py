"""How drafts are chosen and which are kept: coupled by shared noise, or by the classical rule.

Either way a draft is kept exactly if it is the token that ``pick`` gives at its place.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import mlx.core as mx
import numpy as np

from .draw import Draw
from .logits import put_rows, take_rows
from .noise import RoundNoise
from .rejection import accept_or_resample, probabilities
from .sampling import Picks, pick
from .voice import Wanted

Rule = Literal["coupled", "rejection"]


class Acceptance(Protocol):
    """A rule, and what it remembers of one round."""

    needs_drafts: bool
    """Whether what the target says depends on what was drafted."""

    def begin_round(self) -> None:
        """Forget the last round, whether it landed or failed."""
        ...

    def choose(
        self,
        seq_ids: Sequence[int],
        num_ahead: int,
        draws: Sequence[Draw],
        logits: mx.array,
        noise: RoundNoise | None = None,
    ) -> mx.array:
        """Pick the draft after ``num_ahead`` others from a drafter's ``logits``, [N, V].

        ``noise`` is another than the round's, where the draft is for a later one.
        """
        ...

    def pick(self, wanted: Sequence[Wanted], draws: Sequence[Draw], logits: mx.array) -> Picks:
        """Pick what the target says at each wanted position, from its ``logits``, [N, V]."""
        ...


def make_acceptance(rule: Rule, vocab_size: int) -> Acceptance:
    """Return the rule called ``rule`` for logits of ``vocab_size``."""
    return Coupled(vocab_size) if rule == "coupled" else Rejection(vocab_size)


class Coupled:
    """Drafter and target pick with the same noise, and the target's token always stands."""

    needs_drafts = False

    def __init__(self, vocab_size: int) -> None:
        self._noise = RoundNoise(vocab_size)

    def begin_round(self) -> None:
        self._noise.clear()

    def choose(
        self,
        seq_ids: Sequence[int],
        num_ahead: int,
        draws: Sequence[Draw],
        logits: mx.array,
        noise: RoundNoise | None = None,
    ) -> mx.array:
        return pick(draws, logits, noise or self._noise, logprobs=False).tokens

    def pick(self, wanted: Sequence[Wanted], draws: Sequence[Draw], logits: mx.array) -> Picks:
        return pick(draws, logits, self._noise)


class Rejection:
    """The classical rule (see ``rejection``), by the distributions that the drafts came from.

    Drafts that were not chosen here, such as those looked up, came with probability one.
    """

    needs_drafts = True

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._noise = RoundNoise(vocab_size)
        self._offered: dict[tuple[int, int], mx.array] = {}  # by sequence and number of drafts

    def begin_round(self) -> None:
        self._noise.clear()
        self._offered.clear()

    def choose(
        self,
        seq_ids: Sequence[int],
        num_ahead: int,
        draws: Sequence[Draw],
        logits: mx.array,
        noise: RoundNoise | None = None,
    ) -> mx.array:
        assert noise is None, "drafts have to be known before others follow them"
        sampled = [row for row, draw in enumerate(draws) if not draw.settings.greedy]
        if sampled:
            members = [draws[row] for row in sampled]
            offered = probabilities(members, take_rows(logits, sampled), self._vocab_size)
            for place, row in enumerate(sampled):
                self._offered[seq_ids[row], num_ahead] = offered[place]
        return pick(draws, logits, self._noise, logprobs=False).tokens

    def pick(self, wanted: Sequence[Wanted], draws: Sequence[Draw], logits: mx.array) -> Picks:
        judged = [
            row
            for row, (want, draw) in enumerate(zip(wanted, draws, strict=True))
            if want.num_ahead < len(want.window.drafts) and not draw.settings.greedy
        ]

        def settle(tokens: mx.array) -> mx.array:
            if not judged:
                return tokens
            members = [draws[row] for row in judged]
            drafts = [wanted[row].window.drafts[wanted[row].num_ahead] for row in judged]
            target = probabilities(members, take_rows(logits, judged), self._vocab_size)
            offered = [
                self._offered_at(wanted[row], draft)
                for row, draft in zip(judged, drafts, strict=True)
            ]
            _, settled = accept_or_resample(members, target, mx.stack(offered), mx.array(drafts))
            return put_rows(tokens, judged, settled)

        return pick(draws, logits, self._noise, settle=settle)

    def _offered_at(self, want: Wanted, draft: int) -> mx.array:
        offered = self._offered.get((want.window.row.seq_id, want.num_ahead))
        if offered is None:
            certain = np.zeros(self._vocab_size, np.float32)
            certain[draft] = 1
            offered = mx.array(certain)
        return offered
