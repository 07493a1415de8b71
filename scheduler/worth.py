"""What drafts bring a round, in tokens as they count.

When nobody waits, a row that ends early leaves its place empty: of what a round takes that spares
only the share that grows with the rows, and the rest only once the last row ends. So then a gain
counts in full as far as those of the rows with long to go have it that gain least and are least
lucky (``until_last``), and beyond that by that share.
"""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from .batch_end import until_last

GROWS, GROWS_PER_ROW, MOST_GROWS = 0.2, 0.01, 0.8  # share of a round's time that rows make
LAGGARDS = 2  # one in so many of the rows with long to go: they are the last to end


class Worth(NamedTuple):
    """What a round is to bring, by depth: tokens as they count, and drafts that are accepted."""

    tokens: list[float]
    accepted: list[float]


def worth(
    num_rows: int,
    chances: Mapping[int, Seq[float]],
    ends_by: Collection[int] | None,
    most_left: int,
) -> Worth:
    """Return what a round brings by depth, up to the deepest that any row has.

    ``chances`` are those of the rows that have drafts, by sequence; ``ends_by`` the sequences by
    which the batch ends, with ``most_left`` tokens to go, or None: others take their places.
    """
    tokens, accepted = [float(num_rows)], [0.0]
    everybody: list[float] = []  # what those gain by which the batch ends, by place
    gained = 0.0
    grows = 1.0 if ends_by is None else min(MOST_GROWS, GROWS + GROWS_PER_ROW * num_rows)
    for place in range(max(map(len, chances.values()), default=0)):
        gained += sum(own[place] for own in chances.values() if place < len(own))
        accepted.append(gained)
        tokens.append(grows * (num_rows + gained))
        if ends_by is not None:
            least = sorted(
                own[place] if place < len(own := chances.get(seq_id, ())) else 0.0
                for seq_id in ends_by
            )[: -(-len(ends_by) // LAGGARDS)]
            everybody.append(sum(least) / len(least))
            pace = until_last(everybody, most_left, len(ends_by))
            tokens[-1] += (1 - grows) * num_rows * pace
    return Worth(tokens, accepted)
