"""Turns a round's logits into tokens: what the target says, and what a drafter proposes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import mlx.core as mx

from scheduler.round import UNKNOWN, Row

from .acceptance import Acceptance
from .drafting.chain import Chain
from .drafting.drafter import Choose, choose_likeliest
from .drafting.offer import Unjudged
from .draw import Draw
from .likeliest import has_fast_host, likeliest, likeliest_on_device
from .noise import NoiseAfter
from .prompt_reader import Head
from .run import Run
from .sampling import Picked, Picks
from .voice import Wanted


class Output:
    """The picks of all running sequences, each by its own settings."""

    def __init__(self, runs: Mapping[int, Run], acceptance: Acceptance, vocab_size: int) -> None:
        self._runs = runs
        self._vocab_size = vocab_size
        self._acceptance = acceptance

    def begin_round(self, seq_ids: Iterable[int]) -> None:
        """Forget the last round, whether it landed or failed."""
        self._acceptance.begin_round()
        for seq_id in seq_ids:
            self._runs[seq_id].begin_round()

    def pick(self, wanted: Sequence[Wanted], logits: mx.array) -> list[int]:
        """Pick a token for each wanted position from ``logits``, (positions, vocabulary)."""
        if has_fast_host(logits) and all(
            self._runs[want.window.row.seq_id].is_plain for want in wanted
        ):
            return likeliest(logits)
        picks = self.begin(wanted, logits)
        return [
            self.take(want.window.row.seq_id, picked, want.num_ahead)
            for want, picked in zip(wanted, picks.read(), strict=True)
        ]

    def needs_drafts(self, seq_ids: Iterable[int]) -> bool:
        """Whether what one of these says depends on drafts otherwise than by their number."""
        return self._acceptance.needs_drafts or any(
            self._runs[seq_id].needs_drafts for seq_id in seq_ids
        )

    def is_settled(self, seq_ids: Iterable[int]) -> bool:
        """Whether all that these say from here on depends on logits and places alone."""
        return not self._acceptance.needs_drafts and all(
            self._runs[seq_id].is_settled for seq_id in seq_ids
        )

    def begin(self, wanted: Sequence[Wanted], logits: mx.array) -> Picks:
        """Begin to pick a token for each wanted position; what is picked stays on the device."""
        if all(
            self._runs[want.window.row.seq_id].is_plain for want in wanted if not want.num_ahead
        ):
            return Picks(likeliest_on_device(logits))
        draws: list[Draw] = []
        for _, group in groupby(wanted, key=lambda want: id(want.window)):
            window = next(group).window
            run = self._runs[window.row.seq_id]
            if window.row.tokens == (UNKNOWN,):
                draws.append(run.draw_ahead(1))
            elif UNKNOWN in window.drafts:
                draws += [run.draw_ahead(ahead) for ahead in range(len(window.drafts) + 1)]
            else:
                draws += run.draws(window.drafts)
        return self._acceptance.pick(wanted, draws, logits)

    def take(self, seq_id: int, picked: Picked, num_ahead: int = 0) -> int:
        """Return the token picked after ``num_ahead`` drafts; keep what goes with it."""
        run = self._runs[seq_id]
        if picked.logprob is not None:
            run.logprobs.append(picked.logprob)
        if not picked.is_possible:
            run.give_up(num_ahead, "no token that may be said satisfies the constraint here")
        return picked.token

    def listen(self, row: Row, hidden: mx.array, head: Head) -> None:
        """Show a row's hidden states to the request that wants to know of its prompt."""
        run = self._runs[row.seq_id]
        if run.reader is not None and row.start < len(run.request.prompt):
            run.reader.read(row.start, hidden, head)

    def choose(self, seq_ids: Sequence[int], chain: Chain, logits: mx.array) -> mx.array:
        """Pick drafts from a drafter's logits; see drafting.drafter."""
        draws = [
            self._runs[seq_id].draw_after(chain, number) for number, seq_id in enumerate(seq_ids)
        ]
        return self._acceptance.choose(seq_ids, len(chain), draws, logits)

    def choose_for(self, seq_ids: Iterable[int]) -> Choose:
        """Return what picks drafts of these: ``choose``, unless they all say the likeliest."""
        if all(self._runs[seq_id].is_plain for seq_id in seq_ids):
            return choose_likeliest
        return self.choose

    def choose_after(self, before: Unjudged) -> Choose:
        """Return what picks drafts that follow windows which nobody has judged yet."""
        if self.choose_for(row.seq_id for row in before.rows) is choose_likeliest:
            return choose_likeliest
        places = {row.seq_id: place for place, row in enumerate(before.rows)}

        def choose(seq_ids: Sequence[int], chain: Chain, logits: mx.array) -> mx.array:
            draws = [self._runs[seq_id].draw_ahead(1 + len(chain)) for seq_id in seq_ids]
            pairs = zip(seq_ids, draws, strict=True)
            sampled = [places[seq_id] for seq_id, draw in pairs if not draw.settings.greedy]
            further = before.accepted[mx.array(sampled, mx.int32)]
            noise = NoiseAfter(self._vocab_size, further, before.num_drafts)
            return self._acceptance.choose(seq_ids, len(chain), draws, logits, noise)

        return choose
