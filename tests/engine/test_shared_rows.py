"""Which rows read which splits together, and how that is cut for a device."""

import numpy as np

from engine.batch import Batch, Window
from engine.cuda.shared_rows import SharedPlan
from scheduler.round import PrefixGroup, Row


def batch_of(groups: list[tuple[int, int]], others: int = 0) -> Batch:
    """Groups of (rows, shared blocks of 16), each row with a block more; and rows of their own."""
    rows, named, block = [], [], 1
    for count, num_blocks in groups:
        prefix = tuple(range(block, block + num_blocks))
        block += num_blocks + count
        members = [
            Row(len(rows) + n, (1,), num_blocks * 16, (*prefix, block - 1 - n))
            for n in range(count)
        ]
        rows += members
        named.append(PrefixGroup(tuple(row.seq_id for row in members), num_blocks))
    rows += [Row(len(rows) + n, (1,), 300, tuple(range(block, block + 19))) for n in range(others)]
    return Batch([Window(row) for row in rows], 16, tuple(named))


def test_nothing_is_shared_without_a_group_or_less_than_a_split() -> None:
    assert SharedPlan.of(batch_of([], others=3), 8) is None
    assert SharedPlan.of(batch_of([(20, 15)]), 8) is None


def test_whole_splits_of_a_group_are_shared_and_cut_by_rows() -> None:
    plan = SharedPlan.of(batch_of([(8, 40)], others=2), num_kv_heads=8)
    assert plan is not None
    assert plan.splits.tolist() == [2] * 8 + [0] * 2
    assert (plan.num_splits, plan.num_own_splits) == (2, 2)
    assert plan.items.tolist() == [[n, n + 1, 2] for n in range(8)]


def test_a_long_prefix_is_one_item_and_groups_keep_their_own_number_of_splits() -> None:
    plan = SharedPlan.of(batch_of([(4, 256), (40, 32)]), num_kv_heads=8)
    assert plan is not None
    assert plan.items.tolist() == [[0, 4, 16], [4, 44, 2]]
    assert (plan.num_splits, plan.num_own_splits) == (16, 1)


def test_rounding_adds_items_and_rows_that_share_nothing() -> None:
    plan = SharedPlan.of(batch_of([(5, 48)]), num_kv_heads=8)
    assert plan is not None
    rounded = plan.rounded(8)
    assert rounded.items.tolist() == [*plan.items.tolist(), *[[0, 0, 0]] * 3]
    assert rounded.splits.tolist() == [3] * 5 + [0] * 3
    assert (rounded.num_splits, rounded.num_own_splits) == (4, 1)
    assert np.array_equal(np.array(rounded.arrays().items), rounded.items)
