"""The argmax kernel against numpy's, which also gives the first of equal numbers."""

import mlx.core as mx
import numpy as np
import pytest

from engine.cuda import argmax

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 151936), (8, 151936), (2, 3, 248320), (64, 1000), (5, 7), (3, 1), (4, 4099)],
    ids=str,
)
def test_the_first_of_the_highest_is_found(shape, dtype) -> None:
    numbers = mx.random.normal(shape).astype(dtype)  # in bfloat16 many are equal
    expected = np.array(numbers.astype(mx.float32)).argmax(axis=-1)
    found = argmax.argmax(numbers)
    assert found.dtype == mx.uint32
    assert np.array_equal(np.array(found), expected)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
@pytest.mark.parametrize("columns", [32768, 32771])
def test_equal_and_masked_numbers(columns, dtype) -> None:
    numbers = np.full((6, columns), -np.inf, dtype=np.float32)
    numbers[1, [columns - 1, 70]] = -3.0
    numbers[2] = -1e30
    numbers[3, 5000:] = 2.0
    numbers[4, columns - 1] = -1e30
    numbers[5, 8:17] = 1.0
    found = argmax.argmax(mx.array(numbers).astype(dtype))
    assert found.tolist() == [0, 70, 0, 5000, columns - 1, 8]
