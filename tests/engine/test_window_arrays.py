"""What kernels read of a window reaches the device by one copy and comes apart unchanged."""

import mlx.core as mx
import numpy as np

from engine.batch import Batch, Window
from engine.cuda.device import on_device
from engine.cuda.window import SPLIT, WindowArrays, splits_for
from scheduler.round import Row

BLOCK_SIZE = 16


def test_a_window_of_one_short_row_keeps_its_numbers() -> None:
    row = Row(1, (5,), 3, (7,))
    arrays = WindowArrays.of(Batch([Window(row)], BLOCK_SIZE))

    assert np.array(arrays.starts).tolist() == [3]
    assert np.array(arrays.lengths).tolist() == [1]
    assert np.array(arrays.tables).tolist() == [[7]]
    assert (arrays.num_rows, arrays.num_splits) == (1, 1)


def test_rows_of_several_lengths_come_apart_as_they_were_packed() -> None:
    long = tuple(range(1, 2 + 2 * SPLIT // BLOCK_SIZE))
    rows = [Row(1, (5, 6), 2 * SPLIT - 1, long), Row(2, (7,), 20, (90, 91))]
    batch = Batch([Window(row) for row in rows], BLOCK_SIZE)
    arrays = WindowArrays.of(batch)

    assert np.array_equal(np.array(arrays.starts), batch.starts)
    assert np.array_equal(np.array(arrays.lengths), batch.lengths)
    assert np.array_equal(np.array(arrays.tables), batch.blocks)
    assert (arrays.num_rows, arrays.num_splits) == (2, 2)


def test_the_first_split_is_as_long_as_two_others() -> None:
    ends = [1, 2 * SPLIT, 2 * SPLIT + 1, 3 * SPLIT, 3 * SPLIT + 1, 9 * SPLIT]
    assert [splits_for(end) for end in ends] == [1, 1, 2, 2, 3, 8]


def test_a_copy_for_the_device_is_never_as_short_as_mlx_keeps_at_the_host() -> None:
    assert np.array(on_device(mx.array([0.5, 2.0]))).tolist() == [0.5, 2.0, 0.0, 0.0]
    assert np.array(on_device(mx.arange(6).reshape(2, 3))).tolist() == [0, 1, 2, 3, 4, 5]
