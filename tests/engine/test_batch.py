"""Rows as arrays: spans that gather little for nothing, places, and what each query may see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import FEWEST_SPARED, Batch, Tables, Window
from engine.spans import MAX_GATHER_OVERHEAD
from scheduler.round import PrefixGroup, Row

BLOCK_SIZE = 4
NUM_BLOCKS = 1000
HEADS = 2


def windows_of(starts_and_lengths: list[tuple[int, int]]) -> list[Window]:
    """Rows over blocks of their own, numbered one after the other."""
    windows, next_block = [], 1
    for number, (start, length) in enumerate(starts_and_lengths):
        used = -(-(start + length) // BLOCK_SIZE)
        blocks = tuple(range(next_block, next_block + used))
        next_block += used
        windows.append(Window(Row(number, tuple(range(1, 1 + length)), start, blocks)))
    return windows


rows = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9)), min_size=1, max_size=12)


@given(rows)
def test_spans_cover_all_rows_and_gather_little_more_than_they_hold(
    plan: list[tuple[int, int]],
) -> None:
    batch = Batch(windows_of(plan), BLOCK_SIZE)
    used = [-(-int(end) // BLOCK_SIZE) for end in batch.starts + batch.lengths]

    covered = [row for span in batch.spans for row in range(span.first, span.last)]
    assert covered == list(range(len(plan)))
    for span in batch.spans:
        held = used[span.first : span.last]
        assert span.num_blocks == max(held)
        assert span.num_blocks * len(held) <= MAX_GATHER_OVERHEAD * sum(held)


@given(rows)
def test_every_token_goes_to_its_place_and_padding_to_scratch(plan: list[tuple[int, int]]) -> None:
    batch = Batch(windows_of(plan), BLOCK_SIZE)
    places = np.array(batch.places(HEADS, NUM_BLOCKS))

    assert places.shape == (len(plan), HEADS, batch.width)
    for row, window in enumerate(batch.windows):
        for time in range(batch.width):
            position = window.row.start + time
            is_padding = time >= window.length
            block = 0 if is_padding else window.row.blocks[position // BLOCK_SIZE]
            for head in range(HEADS):
                expected = (head * NUM_BLOCKS + block) * BLOCK_SIZE + position % BLOCK_SIZE
                assert places[row, head, time] == expected


@pytest.mark.parametrize("window_size", [None, 5])
@given(plan=rows)
def test_a_query_sees_its_own_rows_past_and_nothing_else(
    window_size: int | None, plan: list[tuple[int, int]]
) -> None:
    batch = Batch(windows_of(plan), BLOCK_SIZE)
    for span in batch.spans:
        seen = np.array(batch.mask(span, window_size))
        assert seen.shape == (
            span.last - span.first,
            1,
            batch.width,
            span.num_blocks * BLOCK_SIZE,
        )
        for row in range(span.first, span.last):
            for time in range(int(batch.lengths[row])):
                position = int(batch.starts[row]) + time
                first = 0 if window_size is None else max(0, position - window_size + 1)
                visible = np.flatnonzero(seen[row - span.first, 0, time])
                assert visible.tolist() == list(range(first, position + 1))


def test_a_long_row_beside_short_ones_does_not_make_them_gather_as_much() -> None:
    batch = Batch(windows_of([(3, 1), (400, 1), (7, 1), (2, 1)]), BLOCK_SIZE)

    gathered = sum(span.num_blocks * (span.last - span.first) for span in batch.spans)
    assert gathered <= MAX_GATHER_OVERHEAD * (101 + 1 + 2 + 1)


def test_drafts_belong_to_the_window_and_to_the_blocks_it_uses() -> None:
    row = Row(1, (7,), 3, (5, 6), num_drafts=2)
    batch = Batch([Window(row, (8, 9))], BLOCK_SIZE)

    assert np.array(batch.tokens()).tolist() == [[7, 8, 9]]
    assert np.array(batch.places(1, NUM_BLOCKS)).tolist() == [[[23, 24, 25]]]


def test_tables_kept_between_rounds_are_those_of_the_rows_as_they_are() -> None:
    tables = Tables()
    rounds = [((3, 4), (7, 8, 9)), ((3, 4, 6), (7, 8, 9)), ((3, 5, 6), (7, 2, 9))]
    for plan in rounds:
        rows = [
            Row(number, (1,), 16 * len(blocks) - 1, blocks) for number, blocks in enumerate(plan)
        ]
        windows = [Window(row) for row in rows]
        fresh = Batch(windows, 16, keep_order=True)
        kept = Batch(windows, 16, keep_order=True, tables=tables)
        assert np.array_equal(kept.blocks, fresh.blocks)
    again = tables.of(rows[0])
    assert tables.of(rows[0]) is again
    tables.forget(0)
    assert tables.of(rows[0]) is not again


def test_rows_that_need_not_stand_by_length_stay_where_they_are_but_for_groups() -> None:
    plan = [(5, 1), (300, 1), (90, 1), (310, 1)]
    assert [row.seq_id for row in Batch(windows_of(plan), BLOCK_SIZE).rows] == [3, 1, 2, 0]
    batch = Batch(windows_of(plan), BLOCK_SIZE, by_length=False)
    assert [row.seq_id for row in batch.rows] == [0, 1, 2, 3]
    assert batch.spans[-1].last == 4

    group = PrefixGroup((0, 2, 3), FEWEST_SPARED)
    batch = Batch(windows_of(plan), BLOCK_SIZE, [group], by_length=False)
    assert [row.seq_id for row in batch.rows] == [1, 0, 2, 3]
