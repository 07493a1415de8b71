"""Attention of wide windows in tiles, and the exponential it is made of."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import tiles
from engine.attention.exponential import exp
from engine.attention.index import BatchIndex
from engine.attention.paged import PagedCache
from engine.batch import Batch, Window
from engine.pages import Pages, PageShape
from scheduler.round import Row

SIZE = 16
HEADS = {"heads of two": (4, 2), "one head for all": (3, 1)}


def make_batch(rows: list[tuple[int, int]]) -> Batch:
    """Rows as (start, length), over blocks of their own."""
    windows, first = [], 1
    for number, (start, length) in enumerate(rows):
        used = -(-(start + length) // SIZE)
        windows.append(Window(Row(number, (1,) * length, start, tuple(range(first, first + used)))))
        first += used
    return Batch(windows, SIZE)


def attend(batch: Batch, heads: tuple[int, int], **choices: object) -> np.ndarray:
    num_blocks = 1 + max(block for window in batch.windows for block in window.row.blocks)
    pages = Pages(PageShape(heads[1], 16, 8, mx.float32), num_blocks, SIZE)
    keys, values = mx.random.split(mx.random.key(num_blocks))
    pages.keys = mx.random.normal(pages.keys.shape, key=keys)
    pages.values = mx.random.normal(pages.values.shape, key=values)
    queries = mx.random.normal((batch.size, heads[0], batch.width, 16), key=mx.random.key(3))
    cache = PagedCache(pages, BatchIndex(batch), **choices)
    return np.array(cache.attend(queries, 0.25, None))


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 90)), min_size=1, max_size=4),
    heads=st.sampled_from(sorted(HEADS)),
    limits=st.sampled_from([{}, {"window_size": 40}, {"rotary_shift": 1}]),
    scores=st.sampled_from([1, 1 << 12, 1 << 18]),
)
def test_tiles_of_any_size_give_what_mlx_gives(
    rows: list[tuple[int, int]], heads: str, limits: dict, scores: int
) -> None:
    batch = make_batch([(300, 60), (0, 1), *rows])  # padding that sees nothing is in it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_SCORES", scores if batch.width < 20 else max(scores, 1 << 14))
        patch.setattr(tiles, "_FEWEST", 0)
        tiled = attend(batch, HEADS[heads], tiles=True, **limits)
    whole = attend(batch, HEADS[heads], **limits)

    assert np.isfinite(tiled).all(), "padding too: its K/V go to scratch, which others gather"
    for number in range(batch.size):
        length = int(batch.lengths[number])
        ours, theirs = tiled[number, :, :length], whole[number, :, :length]
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_what_is_not_to_be_seen_has_no_weight_at_all() -> None:
    """A weight of 1e-38, the least that float32 has, would show beside such values."""
    keys, values = mx.random.normal((1, 1, 512, 16)), mx.ones((1, 1, 512, 8))
    values[:, :, 500:] = 1e38
    queries = mx.random.normal((1, 4, 64, 16))
    seen = (mx.arange(512) < 500)[None, None, None]
    mask = mx.broadcast_to(seen, (1, 1, 64, 512))

    out = tiles.attend_in_tiles(queries, keys, values, scale=0.25, mask=mask, num_seen=512)

    np.testing.assert_allclose(np.array(out), 1.0, rtol=1e-5)


def test_short_windows_stay_with_mlx() -> None:
    queries, keys = mx.zeros((1, 4, 1, 16)), mx.zeros((1, 2, 512, 16))

    assert not tiles.pays(queries, keys)
    assert tiles.pays(mx.zeros((1, 4, 64, 16)), keys) is (mx.default_device() == mx.Device(mx.cpu))
    assert not tiles.pays(mx.zeros((1, 4, 64, 16), mx.bfloat16), keys)


def test_tiles_of_a_few_queries_are_left_to_mlx() -> None:
    """Long contexts and many rows: keys would be read again for every query or two."""
    queries = mx.zeros((1, 16, 128, 16))
    is_cpu = mx.default_device() == mx.Device(mx.cpu)
    assert tiles.pays(queries, mx.zeros((1, 8, 2048, 16))) is is_cpu
    assert not tiles.pays(queries, mx.zeros((1, 8, 4096, 16)))
    assert not tiles.pays(mx.zeros((8, 16, 64, 16)), mx.zeros((8, 8, 1024, 16)))


@pytest.mark.parametrize("size", [100, 1 << 15])
def test_the_exponential_is_right_down_to_the_smallest_number(size: int) -> None:
    x = -mx.arange(size).astype(mx.float32) * (87.0 / size)
    expected = np.exp(np.array(x).astype(np.float64))

    np.testing.assert_allclose(np.array(exp(x)), expected, rtol=4e-6, atol=2e-38)
    assert exp(mx.full((size,), -1e30)).max().item() == 0
    assert exp(mx.full((size,), -mx.inf)).max().item() == 0
