"""What the broker has for one peer at a time leaves as one message, if the peer takes bundles."""

from collections.abc import Sequence

from .broker_core import BrokerCore
from .broker_records import Send, Side
from .bundle import bundled


def joined(core: BrokerCore, sends: Sequence[Send]) -> Sequence[Send]:
    """Return the sends to carry out instead of these. Those to one peer stay in order."""
    if len(sends) < 2 or len({peer for _, peer, _ in sends}) == len(sends):
        return sends  # nothing to join, as where each row of a round is another client's
    of_peer: dict[tuple[Side, bytes], list[list[bytes]]] = {}
    for side, peer, frames in sends:
        of_peer.setdefault((side, peer), []).append(frames)
    fewer: list[Send] = []
    for (side, peer), messages in of_peer.items():
        takes = len(messages) > 1 and core.takes_bundles(side, peer)
        fewer += [Send(side, peer, each) for each in (bundled(messages) if takes else messages)]
    return fewer
