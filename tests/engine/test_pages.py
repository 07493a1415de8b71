"""Pages: what is written is read back, blocks are copied whole, and no write copies the pool."""

import mlx.core as mx
import numpy as np
import pytest

from engine.pages import Pages, PageShape

SHAPE = PageShape(num_kv_heads=2, key_dim=4, value_dim=3, dtype=mx.float32)
BLOCK_SIZE = 4


def places_of(pages: Pages, block: int, inside: int, count: int) -> mx.array:
    """Flat places of ``count`` positions of one block, (1, heads, count)."""
    heads = np.arange(SHAPE.num_kv_heads)[:, None] * pages.num_blocks
    return mx.array(((heads + block) * BLOCK_SIZE + inside + np.arange(count))[None])


def some(count: int, dim: int) -> mx.array:
    return mx.random.normal((1, SHAPE.num_kv_heads, count, dim), key=mx.random.key(count * dim))


def test_what_is_written_to_a_block_is_read_back_and_no_other_block_changes() -> None:
    pages = Pages(SHAPE, 6, BLOCK_SIZE)
    keys, values = some(3, 4), some(3, 3)
    pages.write(places_of(pages, 2, 1, 3), keys, values)
    mx.eval(pages.arrays)

    found_keys, found_values = pages.read_block(2)
    assert mx.array_equal(found_keys[:, 1:], keys[0])
    assert mx.array_equal(found_values[:, 1:], values[0])
    assert not any(mx.any(pages.read_block(block)[0]) for block in (0, 1, 3, 4, 5))


def test_gathering_gives_each_row_its_blocks_in_order_for_every_head() -> None:
    pages = Pages(SHAPE, 6, BLOCK_SIZE)
    for block in range(1, 6):
        pages.write(places_of(pages, block, 0, 4), some(4, 4) + block, some(4, 3) - block)
        mx.eval(pages.arrays)
    tables = np.array([[3, 1], [5, 2]])
    heads = np.arange(SHAPE.num_kv_heads)[:, None] * pages.num_blocks
    keys, values = pages.gather(mx.array(tables[:, None, :] + heads))

    for row, table in enumerate(tables):
        for place, block in enumerate(table):
            inside = slice(place * BLOCK_SIZE, (place + 1) * BLOCK_SIZE)
            expected_keys, expected_values = pages.read_block(int(block))
            assert mx.array_equal(keys[row, :, inside], expected_keys)
            assert mx.array_equal(values[row, :, inside], expected_values)


def test_a_copied_block_is_the_same_and_then_goes_its_own_way() -> None:
    pages = Pages(SHAPE, 6, BLOCK_SIZE)
    keys = some(4, 4)
    pages.write(places_of(pages, 2, 0, 4), keys, some(4, 3))
    mx.eval(pages.arrays)
    pages.copy_block(2, 5)
    mx.eval(pages.arrays)
    pages.write(places_of(pages, 5, 3, 1), some(1, 4), some(1, 3))
    mx.eval(pages.arrays)

    assert mx.array_equal(pages.read_block(2)[0], keys[0])
    assert mx.array_equal(pages.read_block(5)[0][:, :3], keys[0, :, :3])
    assert not mx.array_equal(pages.read_block(5)[0][:, 3:], keys[0, :, 3:])


@pytest.mark.parametrize("event", ["write and gather", "copy a block"])
def test_nothing_copies_the_pool(event: str) -> None:
    pages = Pages(PageShape(2, 64, 64, mx.float32), 4096, 16)  # 64 MiB
    mx.eval(pages.arrays)
    pool_bytes = sum(array.nbytes for array in pages.arrays)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    if event == "write and gather":
        new = mx.ones((1, 2, 4, 64))
        pages.write(places_of(pages, 7, 0, 4), new, new)
        mx.eval(*pages.gather(mx.array([[[7], [4096 + 7]]])), pages.arrays)
    else:
        pages.copy_block(7, 9)
        mx.eval(pages.arrays)

    assert mx.get_peak_memory() - before < pool_bytes / 8
