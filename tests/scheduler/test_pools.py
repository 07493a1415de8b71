"""Ids are free, cached or referenced, and never two of these."""

import pytest

from scheduler.block_table import BlockTable
from scheduler.pools import BlockPool, NotHeld, OutOfIds, StateSlots


def test_scratch_is_never_handed_out() -> None:
    pool = BlockPool(4)

    assert pool.take(3) == [1, 2, 3]
    assert pool.num_free == 0


def test_the_lowest_free_id_is_taken_first_however_they_were_released() -> None:
    pool = StateSlots(9)
    first = pool.take(6)
    pool.release([4, 2, 5])
    assert pool.take(2) == [2, 4]
    pool.release(reversed([1, 3, 6]))
    assert pool.take(5) == [1, 3, 5, 6, 7]
    assert first == [1, 2, 3, 4, 5, 6]


def test_taking_more_than_there_is_takes_nothing() -> None:
    pool = BlockPool(4)

    with pytest.raises(OutOfIds, match="4 blocks wanted, 3 free"):
        pool.take(4)

    assert pool.num_free == 3


def test_a_shared_id_is_free_when_its_last_holder_releases_it() -> None:
    pool = BlockPool(3)
    [block] = pool.take(1)
    pool.share([block])

    pool.release([block])
    assert block not in pool.free_ids
    pool.release([block])
    assert block in pool.free_ids


def test_releasing_twice_is_refused_and_names_the_id() -> None:
    pool = BlockPool(3)
    pool.release(pool.take(1))

    with pytest.raises(NotHeld, match="block 1 is released once more"):
        pool.release([1])


def test_a_free_id_cannot_be_shared_or_kept() -> None:
    pool = BlockPool(3)

    with pytest.raises(NotHeld, match="block 2 is free"):
        pool.share([2])
    with pytest.raises(NotHeld, match="block 2 is not held"):
        pool.keep(2)


def test_a_kept_id_is_cached_after_release_in_order_of_use() -> None:
    pool = BlockPool(5)
    blocks = pool.take(3)
    for block in blocks:
        pool.keep(block)
    pool.release(reversed(blocks))
    pool.share([blocks[2]])
    pool.release([blocks[2]])

    assert pool.cached_ids == (2, 1, 3)
    assert pool.oldest_cached() == 2
    assert (pool.num_free, pool.num_cached) == (1, 3)


def test_a_forgotten_id_is_free_at_once_or_when_released() -> None:
    pool = BlockPool(3)
    one, two = pool.take(2)
    pool.keep(one)
    pool.keep(two)
    pool.release([one])

    pool.forget(one)
    pool.forget(two)
    assert pool.free_ids == {one}
    pool.release([two])
    assert pool.free_ids == {one, two}


def test_a_slot_owns_its_position_and_its_unfolded_count() -> None:
    slots = StateSlots(3)
    slots.stand(1, 16, 2)
    slots.stand_like(2, 1)

    assert (slots.position, slots.unfolded) == ([0, 16, 16], [0, 2, 2])


def test_a_table_gives_the_same_tuple_until_it_changes() -> None:
    table = BlockTable([4, 7, 9])

    assert table.first(3) is table.first(3)
    assert table.first(2) == (4, 7)
    table.extend([5])
    assert table.replace(0, 8) == 4
    assert table.first(4) == (8, 7, 9, 5)
    assert table.cut(1) == [5, 9, 7]
    assert table.first(1) == (8,)
