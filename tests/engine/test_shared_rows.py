"""Which rows read which splits together, and how that is cut for a device."""

import numpy as np

from engine.batch import Batch, Window
from engine.cuda.shared_rows import FIRST_BLOCKS, SharedPlan, packed_size
from engine.cuda.window import SPLIT
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
    table = tuple(range(block, block + 2 * SPLIT // 16 + 1))
    rows += [Row(len(rows) + n, (1,), 2 * SPLIT, table) for n in range(others)]
    return Batch([Window(row) for row in rows], 16, tuple(named))


def test_nothing_is_shared_without_a_group_or_less_than_a_tile() -> None:
    assert SharedPlan.of(batch_of([], others=3)) is None
    assert SharedPlan.of(batch_of([(70, 3)])) is None


def test_whole_tiles_of_a_group_are_shared_by_its_rows_alone() -> None:
    plan = SharedPlan.of(batch_of([(8, 42)], others=2))
    assert plan is not None
    assert plan.groups.tolist() == [[0, 8, 640]]
    assert plan.positions.tolist() == [640] * 8 + [0] * 2
    assert (plan.num_positions, plan.num_own_splits) == (640, 2)


def test_groups_keep_their_own_number_of_positions() -> None:
    plan = SharedPlan.of(batch_of([(4, 256), (40, 32)]))
    assert plan is not None
    assert plan.groups.tolist() == [[0, 4, 4096], [4, 44, 512]]
    assert plan.positions.tolist() == [4096] * 4 + [512] * 40
    assert (plan.num_positions, plan.num_own_splits) == (4096, 1)


def test_rounding_adds_groups_and_rows_that_share_nothing() -> None:
    plan = SharedPlan.of(batch_of([(20, 48), (30, 32), (40, 16)]))
    assert plan is not None
    rounded = plan.rounded(96)
    assert rounded.groups.tolist() == [*plan.groups.tolist(), [0, 0, 0]]
    assert rounded.positions.tolist() == [768] * 20 + [512] * 30 + [256] * 40 + [0] * 6
    assert (rounded.num_positions, rounded.num_own_splits) == (1024, 1)
    arrays = rounded.arrays()
    packed = np.array(arrays.packed)
    assert arrays.num_groups == 4
    assert packed.size == packed_size(96, 4)
    assert packed[:12].tolist() == rounded.groups.reshape(-1).tolist()
    assert packed[12:108].tolist() == rounded.positions.tolist()
    first_blocks = packed[108:-1].reshape(96, FIRST_BLOCKS)
    assert first_blocks[:90].tolist() == plan.first_blocks.tolist()
    assert not first_blocks[90:].any()
    assert packed[-1] == 1


def test_a_row_tells_the_blocks_where_its_own_positions_begin() -> None:
    batch = batch_of([(8, 42)], others=2)
    plan = SharedPlan.of(batch)
    assert plan is not None
    for number, row in enumerate(batch.rows):
        first = plan.positions[number] // 16
        own = row.blocks[first : first + FIRST_BLOCKS]
        assert plan.first_blocks[number, : len(own)].tolist() == list(own)
    large = Batch([Window(row) for row in batch.rows], 32, (PrefixGroup(tuple(range(8)), 21),))
    plan = SharedPlan.of(large)
    assert plan is not None
    for number, row in enumerate(large.rows):
        if plan.positions[number]:
            blocks = [row.blocks[(640 + at) // 32] for at in range(0, row.start + 1 - 640, 16)]
            assert plan.first_blocks[number, : len(blocks)].tolist() == blocks
