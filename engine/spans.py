"""Rows whose pages are gathered together: side by side, or what they share once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GATHER_OVERHEAD = 1.25  # blocks gathered over blocks held, see Span
MERGE_BLOCKS = 4  # a span of a group costs about what gathering so many blocks a row does


@dataclass(frozen=True, slots=True)
class Span:
    """Adjacent rows [first, last) whose pages are gathered together.

    Each row is gathered as wide as the longest; so that little is gathered for nothing, a span
    ends before that would exceed MAX_GATHER_OVERHEAD times the blocks its rows hold.
    """

    first: int
    last: int
    num_blocks: int  # where gathering ends
    first_block: int = 0  # where it begins


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """Adjacent rows that share leading blocks, all of them before each row's start.

    ``shared`` gathers those of one row, for all of them; ``own`` what each row has beside.
    """

    shared: Span
    own: tuple[Span, ...]


def cut_spans(blocks_used: Sequence[int], first: int = 0) -> tuple[Span, ...]:
    """Cut rows, best in descending order of blocks used, so that little is gathered for nothing.

    The rows are numbered from ``first``.
    """
    spans = []
    begin, widest, held = 0, 0, 0
    for index, used in enumerate(blocks_used):
        wider = max(widest, used)
        if index > begin and wider * (index - begin + 1) > MAX_GATHER_OVERHEAD * (held + used):
            spans.append(Span(first + begin, first + index, widest))
            begin, wider, held = index, used, 0
        widest = wider
        held += used
    spans.append(Span(first + begin, first + len(blocks_used), widest))
    return tuple(spans)


def group_span(blocks_used: Sequence[int], num_shared: int, first: int) -> GroupSpan:
    """The rows from ``first`` on, which share their first ``num_shared`` blocks."""
    weights = [used - num_shared + MERGE_BLOCKS for used in blocks_used]
    own = tuple(
        Span(cut.first, cut.last, cut.num_blocks - MERGE_BLOCKS + num_shared, num_shared)
        for cut in cut_spans(weights, first)
    )
    return GroupSpan(Span(first, first + 1, num_shared), own)
