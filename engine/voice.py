"""What the executor asks of whoever turns logits into tokens, for the target and for drafters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from scheduler.round import Row

from .batch import Window
from .drafting.chain import Chain
from .drafting.drafter import Choose
from .drafting.offer import Unjudged
from .sampling import Picked, Picks


@dataclass(frozen=True, slots=True)
class Wanted:
    """A position at which a token is to be picked: after ``num_ahead`` drafts of a window."""

    window: Window
    num_ahead: int


Pick = Callable[[Sequence[Wanted], mx.array], Sequence[int]]
"""Choose a token for each wanted position from logits (positions, vocabulary)."""

Listen = Callable[[Row, mx.array, Callable[[mx.array], mx.array]], None]
"""Look at a row's certain tokens: hidden states (tokens, size), and the head that makes logits."""


class Voice(Protocol):
    """Says what the target says, now or later, and what a drafter proposes."""

    def pick(self, wanted: Sequence[Wanted], logits: mx.array) -> Sequence[int]:
        """Choose a token for each wanted position from logits (positions, vocabulary)."""
        ...

    def needs_drafts(self, seq_ids: Iterable[int]) -> bool:
        """Whether what one of these says depends on drafts otherwise than by their number."""
        ...

    def is_settled(self, seq_ids: Iterable[int]) -> bool:
        """Whether all that these say from here on depends on logits and places alone."""
        ...

    def choose_for(self, seq_ids: Iterable[int]) -> Choose:
        """Return what picks drafts of these, which is ``choose``, or something simpler."""
        ...

    def choose_after(self, before: Unjudged) -> Choose:
        """Return what picks drafts that follow ``before``, whose rows are settled."""
        ...

    def begin(self, wanted: Sequence[Wanted], logits: mx.array) -> Picks:
        """The same, but what is chosen stays on the device until it is read.

        Drafts may be unknown, where ``needs_drafts`` says no.
        """
        ...

    def take(self, seq_id: int, picked: Picked, num_ahead: int = 0) -> int:
        """Keep what was picked for a sequence after ``num_ahead`` drafts; return the token."""
        ...

    def choose(self, seq_ids: Sequence[int], chain: Chain, logits: mx.array) -> mx.array:
        """Pick drafts; see drafting.drafter."""
        ...

    def listen(self, row: Row, hidden: mx.array, head: Callable[[mx.array], mx.array]) -> None:
        """Look at a row's certain tokens, as Listen says."""
        ...
