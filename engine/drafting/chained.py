"""Windows and tables of the positions that chains of drafts run: beyond their rows', maybe."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from scheduler.round import Row

from ..batch import Batch, Int32s, Window


def chained(row: Row) -> Window:
    """The positions that a chain of drafts runs: the pending token's and all but the last's."""
    return Window(Row(row.seq_id, (0,) * row.num_drafts, row.start, row.blocks, row.slot))


def chained_after(row: Row, count: int, block_size: int, spare: Iterator[int]) -> Window:
    """The same of ``count`` drafts after ``row``, of whose own any number may be accepted."""
    start, length = row.certain_end, 2 * count
    lacking = max(0, -(-(start + length) // block_size) - len(row.blocks))
    blocks = (*row.blocks, *islice(spare, lacking))
    return Window(Row(row.seq_id, (0,) * length, start, blocks, row.slot))


def tables_after(batch: Batch, count: int, spare: Iterator[int]) -> Int32s:
    """Blocks of chains of ``count`` drafts after the windows of ``batch``, (rows, most).

    Of the drafts that those have any number may be accepted.
    """
    needed = [-(-(row.certain_end + 2 * count) // batch.block_size) for row in batch.rows]
    tables = np.zeros((batch.size, max(needed)), np.int32)
    tables[:, : batch.blocks.shape[1]] = batch.blocks
    for line, row, used, most in zip(tables, batch.rows, batch.used, needed, strict=True):
        if most > used:
            own = row.blocks[used:most]
            line[used:most] = (*own, *islice(spare, most - used - len(own)))
    return tables
