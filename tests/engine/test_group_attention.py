"""Attention of rows that share leading blocks: those are gathered once; nothing else changes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.index import BatchIndex
from engine.attention.paged import PagedCache
from engine.batch import FEWEST_SPARED, WIDEST, Batch, Window
from engine.pages import Pages, PageShape
from engine.spans import GroupSpan
from scheduler.round import PrefixGroup, Row

SIZE = 2
KEY_DIM, VALUE_DIM = 8, 6


@dataclass(frozen=True)
class Shape:
    """Rows of a batch: groups as (shared blocks, own tokens before the window and its length)."""

    groups: list[tuple[int, list[tuple[int, int]]]]
    lone: list[tuple[int, int]]

    def windows(self) -> tuple[list[Window], list[PrefixGroup]]:
        windows, groups, free = [], [], iter(range(1, 100_000))

        def add(prefix: tuple[int, ...], own: int, length: int) -> int:
            start = len(prefix) * SIZE + own
            rest = -(-(start + length) // SIZE) - len(prefix)
            blocks = (*prefix, *(next(free) for _ in range(rest)))
            seq_id, num_drafts = len(windows) + 1, min(length - 1, 2)
            row = Row(seq_id, (7,) * (length - num_drafts), start, blocks, num_drafts=num_drafts)
            windows.append(Window(row, (7,) * num_drafts))
            return seq_id

        for num_shared, members in self.groups:
            prefix = tuple(next(free) for _ in range(num_shared))
            seq_ids = [add(prefix, *member) for member in members]
            groups.append(PrefixGroup(tuple(seq_ids), num_shared))
        for own, length in self.lone:
            add((), own, length)
        return windows, groups


class CountingPages(Pages):
    """Pages that count what is gathered from them."""

    num_gathered = 0

    def gather(self, blocks: mx.array) -> tuple[mx.array, mx.array]:
        self.num_gathered += blocks.size // self.shape.num_kv_heads
        return super().gather(blocks)


def random_pages(windows: list[Window], num_kv_heads: int, dtype: mx.Dtype) -> CountingPages:
    num_blocks = 1 + max(block for window in windows for block in window.row.blocks)
    pages = CountingPages(PageShape(num_kv_heads, KEY_DIM, VALUE_DIM, dtype), num_blocks, SIZE)
    pages.keys = mx.random.normal(pages.keys.shape, dtype, key=mx.random.key(1))
    pages.values = mx.random.normal(pages.values.shape, dtype, key=mx.random.key(2))
    return pages


def attend(
    batch: Batch, pages: Pages, num_heads: int, *, sinks: mx.array | None = None, **limits: int
) -> dict[int, np.ndarray]:
    """Each row's output, (heads, its window, dim), by sequence; its queries are its own noise."""
    queries = [
        mx.random.normal((num_heads, batch.width, KEY_DIM), key=mx.random.key(one.row.seq_id))
        for one in batch.windows
    ]
    cache = PagedCache(pages, BatchIndex(batch), **limits)
    out = cache.attend(mx.stack(queries).astype(pages.shape.dtype), KEY_DIM**-0.5, sinks)
    assert out.dtype == pages.shape.dtype
    outputs = np.array(out.astype(mx.float32))
    pairs = zip(batch.windows, outputs, strict=True)
    return {one.row.seq_id: output[:, : one.length] for one, output in pairs}


def assert_close(ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray], limit: float) -> None:
    assert ours.keys() == theirs.keys()
    for seq_id, output in ours.items():
        np.testing.assert_allclose(output, theirs[seq_id], atol=limit, rtol=limit)


member = st.tuples(st.integers(0, 9), st.integers(1, 7))
shapes = st.builds(
    Shape,
    st.lists(st.tuples(st.integers(1, 90), st.lists(member, min_size=2, max_size=6)), max_size=3),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 7)), min_size=1, max_size=4),
)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    heads=st.sampled_from([(4, 2), (3, 1), (2, 2)]),
    rotary_shift=st.sampled_from([0, 0, 1]),
    is_half=st.booleans(),
)
def test_rows_of_any_groups_attend_as_they_do_without(
    shape: Shape, heads: tuple[int, int], rotary_shift: int, is_half: bool
) -> None:
    windows, groups = shape.windows()
    dtype, limit = (mx.bfloat16, 0.03) if is_half else (mx.float32, 2e-6)
    pages = random_pages(windows, heads[1], dtype)

    grouped = attend(Batch(windows, SIZE, groups), pages, heads[0], rotary_shift=rotary_shift)
    plain = attend(Batch(windows, SIZE), pages, heads[0], rotary_shift=rotary_shift)

    assert_close(grouped, plain, limit)


@settings(deadline=None)
@given(shapes)
def test_parts_cover_all_rows_and_a_group_is_gathered_once(shape: Shape) -> None:
    windows, groups = shape.windows()
    batch = Batch(windows, SIZE, groups)

    covered: list[int] = []
    together: list[set[int]] = []
    for part in batch.parts:
        spans = part.own if isinstance(part, GroupSpan) else (part,)
        rows = [row for span in spans for row in range(span.first, span.last)]
        covered += rows
        if isinstance(part, GroupSpan):
            seq_ids = {batch.windows[row].row.seq_id for row in rows}
            [group] = [one for one in groups if set(one.seq_ids) == seq_ids]
            assert part.shared.num_blocks == group.num_blocks
            assert {span.first_block for span in spans} == {group.num_blocks}
            together.append(seq_ids)
        for span in spans:
            ends = batch.starts[span.first : span.last] + batch.lengths[span.first : span.last]
            assert span.num_blocks == max(-(-int(end) // SIZE) for end in ends)
    assert covered == list(range(len(windows)))
    worth = [
        set(one.seq_ids)
        for one in groups
        if (len(one.seq_ids) - 1) * one.num_blocks >= FEWEST_SPARED
    ]
    assert sorted(map(sorted, together)) == sorted(map(sorted, worth))


def test_sixty_four_rows_gather_their_prefix_once() -> None:
    windows, groups = Shape([(100, [(3, 1)] * 64)], [(50, 1)]).windows()
    pages = random_pages(windows, 2, mx.float32)

    attend(Batch(windows, SIZE, groups), pages, 4)

    own, lone = 2, 26
    assert pages.num_gathered == 100 + 64 * own + lone


@pytest.mark.parametrize("limits", [{"window_size": 5}, {"sinks": mx.array([0.3, -2.0, 1.0, 0.0])}])
def test_sliding_windows_and_sinks_take_every_row_by_itself(limits: dict) -> None:
    windows, groups = Shape([(70, [(3, 2), (1, 3), (0, 1)])], [(9, 2)]).windows()
    pages = random_pages(windows, 2, mx.float32)
    batch = Batch(windows, SIZE, groups)
    assert any(isinstance(part, GroupSpan) for part in batch.parts)

    grouped = attend(batch, pages, 4, **limits)

    assert pages.num_gathered >= 3 * 70
    assert_close(grouped, attend(Batch(windows, SIZE), pages, 4, **limits), 2e-6)


def test_rows_whose_order_is_to_be_kept_are_not_grouped() -> None:
    windows, groups = Shape([(FEWEST_SPARED, [(3, 1), (1, 1)])], [(9, 1)]).windows()
    batch = Batch(windows[::-1], SIZE, groups, keep_order=True)

    assert batch.windows == windows[::-1]
    assert batch.parts == batch.spans


def test_wide_windows_take_every_row_by_itself() -> None:
    narrow, groups = Shape([(90, [(3, WIDEST), (1, 1), (1, 1)])], []).windows()
    wide, _ = Shape([(90, [(3, WIDEST + 1), (1, 1), (1, 1)])], []).windows()

    assert isinstance(Batch(narrow, SIZE, groups).parts[0], GroupSpan)
    assert Batch(wide, SIZE, groups).parts == Batch(wide, SIZE).spans


def test_of_a_group_only_the_rows_of_the_batch_count() -> None:
    windows, groups = Shape([(FEWEST_SPARED, [(3, 1), (1, 1)])], []).windows()

    assert isinstance(Batch(windows, SIZE, groups).parts[0], GroupSpan)
    assert Batch(windows[:1], SIZE, groups).parts == Batch(windows[:1], SIZE).spans
