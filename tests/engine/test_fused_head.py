"""An MTP head by halves of its weight: the same sums, and no weight is held twice."""

import gc

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from engine.cuda import fused_head, fusing
from engine.drafting.mtp import MTPHead
from engine.drafting.mtp_loading import bundled_head
from engine.loading import load

MANY = fusing.MOST_ROWS + 1  # rows that MLX's own products take


@pytest.fixture
def head() -> MTPHead:
    found = bundled_head(load("demo", dtype="bfloat16"))
    assert found is not None
    return found


def num_bytes(head: MTPHead) -> int:
    return sum(weight.nbytes for _, weight in tree_flatten(head.parameters()))


def test_halves_take_the_place_of_the_weight(head: MTPHead) -> None:
    whole, active = num_bytes(head), mx.get_active_memory()
    assert fused_head.bind(head)
    gc.collect()

    assert num_bytes(head) == whole
    assert mx.get_active_memory() <= active + 4096  # an epsilon for each norm
    assert not fused_head.bind(head)


def test_many_rows_enter_by_halves_as_they_do_whole(head: MTPHead) -> None:
    shape = (1, MANY, head.norm.weight.shape[0])
    both = [mx.random.normal(shape, mx.bfloat16, key=mx.random.key(n)) for n in (0, 1)]
    expected = head.enter(*both).astype(mx.float32)
    assert fused_head.bind(head)
    found = head.enter(*both).astype(mx.float32)

    assert found.shape == expected.shape
    assert mx.linalg.norm(found - expected) < 0.01 * mx.linalg.norm(expected)


def test_a_head_whose_weight_the_kernels_do_not_take_stays_as_it_is(head: MTPHead) -> None:
    head.set_dtype(mx.float32)

    assert not fused_head.bind(head)
    assert type(head) is MTPHead
    assert head.fc.weight.dtype == mx.float32
