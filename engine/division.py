"""Rows that cannot run as they are: windows cut in pieces, run again, and batches divided.

Layers of the generic method need this: they see their state before and after a window and nowhere
else. And so does whoever runs long windows as short ones. What runs, and in which order, decides
nothing about the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.round import Row

from .batch import Window


def cut_at_captures(windows: Sequence[Window]) -> list[list[Window]]:
    """Return stages in which no window has a capture between its start and its certain end.

    Pieces of one window are in successive stages; its captures and drafts go with the piece that
    they belong to, and the last piece alone samples.
    """
    return _staged(_pieces(window, _captures_inside(window.row)) for window in windows)


def cut_to_width(windows: Sequence[Window], widest: int) -> list[list[Window]]:
    """Return stages in which no window has more than ``widest`` certain tokens.

    Only the first piece of a row folds, only the last one drafts and samples.
    """
    return _staged(
        _pieces(window, list(range(window.row.start + widest, window.row.certain_end, widest)))
        for window in windows
    )


def _staged(cut: Iterable[list[Window]]) -> list[list[Window]]:
    """Pieces of each window, in successive stages."""
    stages: list[list[Window]] = []
    for pieces in cut:
        for number, piece in enumerate(pieces):
            if number == len(stages):
                stages.append([])
            stages[number].append(piece)
    return stages


def of_one_length(windows: Sequence[Window]) -> list[list[Window]]:
    """Return groups of one length each, in which none or all are at the start of their sequence.

    Sequences then begin with no state at all, as their modules expect, not with one of zeros.
    """
    groups: dict[tuple[int, bool], list[Window]] = {}
    for window in windows:
        groups.setdefault((window.length, window.row.start == 0), []).append(window)
    return list(groups.values())


def num_drafts_that_can_be_kept(row: Row, block_size: int) -> int:
    """How many drafts leave a state to be captured at every block boundary, if it is wanted there.

    An accepted run that jumps over a boundary, or starts at one that is captured, hides it.
    """
    if any(capture.position == row.certain_end for capture in row.captures):
        return 0
    to_boundary = block_size - row.certain_end % block_size
    return min(row.num_drafts, to_boundary)


def kept_part(window: Window, num_kept: int) -> Window:
    """The first ``num_kept`` tokens of ``window``, all of them certain now; it samples nothing."""
    tokens = (window.row.tokens + window.drafts)[:num_kept]
    return Window(replace(window.row, tokens=tokens, num_drafts=0, samples=False, captures=()))


def _captures_inside(row: Row) -> list[int]:
    return sorted({c.position for c in row.captures if row.start < c.position < row.certain_end})


def _pieces(window: Window, inside: Sequence[int]) -> list[Window]:
    """``window`` cut at the positions ``inside`` it, which ascend."""
    row = window.row
    pieces, start = [], row.start
    for end in [*inside, row.certain_end]:
        is_first, is_last = start == row.start, end == row.certain_end
        # the piece before captured at its end; the first one, among what it folds too
        low = row.start - row.fold if is_first else start + 1
        piece = replace(
            row,
            tokens=row.tokens[start - row.start : end - row.start],
            start=start,
            fold=row.fold if is_first else 0,
            num_drafts=row.num_drafts if is_last else 0,
            samples=row.samples and is_last,
            captures=tuple(c for c in row.captures if low <= c.position <= end),
        )
        pieces.append(Window(piece, window.drafts if is_last else ()))
        start = end
    return pieces
