"""What the executor asks of whoever proposes drafts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import mlx.core as mx

from scheduler.round import BlockCopy, Row, SlotCopy

from ..likeliest import likeliest_on_device
from ..view import BatchView
from .chain import Chain
from .offer import Offer, Unjudged

Choose = Callable[[Sequence[int], Chain, mx.array], mx.array]
"""Pick drafts: (sequence ids, their drafts so far, logits [rows, V]) -> token ids [rows].

It picks with the noise the target will pick with at that position, which is what couples the two.
"""


def choose_likeliest(seq_ids: Sequence[int], chain: Chain, logits: mx.array) -> mx.array:
    """What picks drafts where all rows say the likeliest token: a drafter may know it for that."""
    return likeliest_on_device(logits)


TokensOf = Callable[[int], Sequence[int]]
"""All committed tokens of a sequence, by its id."""


class Drafter(ABC):
    """Proposes drafts, and follows what the target really ran, or is about to run.

    Its memory is numbered like the target's: the same blocks, the same slots. After ``follow``,
    what it keeps of every computed position is true, so whatever shares a block or copies a slot
    shares or copies the drafter's part as well. Rows without drafts are left for later, or looked
    at and followed, as they are launched: they may not have run yet, and only the device may know
    their tokens.
    """

    name: str
    in_order = False  # whatever it launches need not be waited for: see Backend.runs_in_order
    is_free = False  # drafts cost nothing to make: only running them does

    @abstractmethod
    def propose(self, rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        """Return drafts by sequence id, at most ``num_drafts`` each; a row may be left out."""

    def begin(self, rows: Sequence[Row], choose: Choose) -> Offer | None:
        """Begin to propose, without waiting for anything; None where ``propose`` has to be asked.

        ``choose`` needs no drafts on the host.
        """
        return None

    def begin_after(self, before: Unjudged, choose: Choose) -> Offer | None:
        """Begin to propose for the round after windows that nobody has judged yet; None: it cannot.

        As many drafts a row as they have at most; ``choose`` knows where it picks.
        """
        return None

    def evidence(self, seq_id: int) -> int:
        """How many words before a row's drafts of this round are the same as where they come from.

        0 where drafts are computed.
        """
        return 0

    def leave(self, view: BatchView, hidden: mx.array) -> bool:
        """Take in decoding rows that draft nothing whenever that suits; False: do so as others.

        The batch may not have been launched yet. This is all that a drafter may cost while it
        rests, so nothing is to be looked at here. ``hidden`` is as for ``follow``.
        """
        return False

    def look(self, view: BatchView, hidden: mx.array) -> list[mx.array]:
        """Begin to take in a batch before it is judged; return what to evaluate with its logits.

        ``hidden`` is as for ``follow``, which comes next unless the round fails.
        """
        return []

    @abstractmethod
    def follow(self, view: BatchView, hidden: mx.array, kept: Sequence[int]) -> None:
        """Take in a batch that the target ran.

        ``hidden`` (rows, width, size) is the target's after its final norm, ``kept`` how many
        tokens of each row's window are committed: the certain ones and the accepted drafts.
        """

    @abstractmethod
    def copy(self, blocks: Sequence[BlockCopy], slots: Sequence[SlotCopy]) -> None:
        """Carry out a round's copies."""

    def attach(self, tokens_of: TokensOf) -> None:  # noqa: B027  # most have no use for it
        """Learn, before the first round, where the committed tokens of a sequence are found."""

    def undo(self, rows: Iterable[Row]) -> None:  # noqa: B027
        """A round of these rows failed, with all that was launched on top of it.

        What of them is left for later must never be evaluated; their sequences begin anew.
        """

    def forget(self, seq_id: int) -> None:  # noqa: B027
        """A sequence has ended: drop what is kept for it by its id."""
