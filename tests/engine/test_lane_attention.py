"""Attention whose rows are divided among lanes is that of all rows at once."""

import mlx.core as mx
import numpy as np
import pytest

from engine.attention.index import BatchIndex
from engine.attention.paged import PagedCache
from engine.batch import Batch, Window
from engine.cpu import attention
from engine.cpu.attention import LaneCache
from engine.cpu.lanes import Lanes
from engine.pages import Pages, PageShape
from engine.spans import Span
from scheduler.round import Row

SIZE = 16
ROWS = {
    "decoding": [(90, 1), (88, 1), (81, 1), (95, 1), (83, 1)],
    "of different lengths": [(400, 3), (300, 1), (20, 2), (0, 3)],
    "prompts": [(0, 70), (0, 64), (16, 50)],
    "alone": [(200, 1)],
}


@pytest.mark.parametrize("limits", [{}, {"window_size": 40}, {"rotary_shift": 1}, {"tiles": True}])
@pytest.mark.parametrize("rows", list(ROWS))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_divided_among_lanes_attend_as_together(monkeypatch, rows, limits, count) -> None:
    windows, first = [], 1
    for number, (start, length) in enumerate(ROWS[rows]):
        used = -(-(start + length) // SIZE)
        blocks = tuple(range(first, first + used))
        windows.append(Window(Row(number, (1,) * length, start, blocks)))
        first += used
    batch = Batch(windows, SIZE)
    pages = Pages(PageShape(2, 16, 8, mx.float32), first, SIZE)
    pages.keys = mx.random.normal(pages.keys.shape)
    pages.values = mx.random.normal(pages.values.shape)
    queries = mx.random.normal((batch.size, 4, batch.width, 16))
    together = PagedCache(pages, BatchIndex(batch), **limits).attend(queries, 0.25, None)
    monkeypatch.setattr(attention, "LANE_VALUES", 0)
    lanes, streams = Lanes.make(count), []

    def noting(cache: PagedCache, span: Span) -> mx.array:
        streams.append(mx.default_stream(mx.cpu))
        return cache.index.numbers(span, cache.pages)

    monkeypatch.setattr(PagedCache, "numbers", noting)
    divided = LaneCache(pages, BatchIndex(batch), lanes=lanes, **limits)
    said = divided.attend(queries, 0.25, None)

    for number in range(batch.size):
        length = int(batch.lengths[number])
        ours, theirs = (np.array(x)[number, :, :length] for x in (said, together))
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    widest = max(span.last - span.first for span in batch.spans)
    assert set(map(str, streams)) == set(map(str, lanes.streams[:widest]))


def test_few_values_stay_on_one_lane() -> None:
    batch = Batch([Window(Row(n, (1,), 4, (n + 1,))) for n in range(4)], SIZE)
    pages = Pages(PageShape(2, 16, 8, mx.float32), 5, SIZE)
    cache = LaneCache(pages, BatchIndex(batch), lanes=Lanes.make(2))
    (span,) = batch.spans
    assert len(cache._lanes_for(span).streams) == 1
