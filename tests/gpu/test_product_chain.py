"""A block's products in one launch against float64, and that rows do not depend on each other."""

import mlx.core as mx
import numpy as np
import pytest

from engine.cuda.chains import ChainedBlock, Following, Workspace
from engine.cuda.device import count_multiprocessors, on_device
from engine.cuda.product import Norm
from tests.gpu.test_product_kernel import as_float64, normal, normalized, silu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_multiprocessors() == 0, reason="needs an sm_90 device"),
]

SHAPES = {  # hidden, mixed, inner, columns of what follows
    "tiny": (256, 128, 192, (48, 16)),
    "odd": (320, 512, 1344, (528, 144, 144)),
    "wide": (256, 128, 8704, (16_944, 16)),
    "last": (512, 256, 1024, ()),
    "dense": (2560, 4096, 9728, (4096, 1024, 1024)),
    "hybrid": (2560, 4096, 9216, (8192, 4096, 64)),
}


def make_block(hidden: int, mixed: int, inner: int, columns: tuple[int, ...]) -> ChainedBlock:
    def weights(count: int, depth: int) -> mx.array:
        return normal(count, depth, scale=depth**-0.5)

    def norm() -> Norm:
        return Norm(normal(hidden, scale=0.2) + 1, on_device(mx.array([1e-6])))

    following = None
    if columns:
        following = Following(norm(), [weights(count, hidden) for count in columns])
    gate, up = weights(inner, hidden), weights(inner, hidden)
    down = weights(hidden, inner)
    block = ChainedBlock(weights(hidden, mixed), norm(), gate, up, down, following)
    mx.eval(block.matrices, block.norm.weight, block.norm.epsilon)
    return block


def on_host(norm: Norm) -> Norm:
    return Norm(norm.weight, norm.epsilon[0])


def run(
    workspace: Workspace, block: ChainedBlock, x: mx.array, residual: mx.array
) -> list[mx.array]:
    found = [one for one in workspace.run(block, x, residual, mx.zeros((1,))) if one is not None]
    mx.eval(found)
    return found


def assert_near(found: mx.array, reference: np.ndarray, most: float) -> None:
    assert found.shape == reference.shape
    error = np.linalg.norm(as_float64(found) - reference) / np.linalg.norm(reference)
    assert error < most, error


@pytest.mark.parametrize("name", SHAPES)
def test_a_block_equals_its_parts_whatever_the_rows(name) -> None:
    mx.random.seed(0)
    hidden, mixed, *_ = SHAPES[name]
    block = make_block(*SHAPES[name])
    workspace = Workspace([block])
    x, residual = normal(64, 1, mixed), normal(64, 1, hidden)
    whole = run(workspace, block, x, residual)

    h = as_float64(residual) + as_float64(x) @ as_float64(block.mixed).T
    rounded = mx.array(h.astype(np.float32)).astype(mx.bfloat16)
    normed = normalized(rounded, on_host(block.norm))
    active = silu(normed @ as_float64(block.gate).T) * (normed @ as_float64(block.up).T)
    out = h + active @ as_float64(block.down).T
    assert_near(whole[0], out, 5e-3)
    if block.following is not None:
        # of what was found: the norm would carry the rounding of the sum on
        projections = mx.concatenate(list(block.following.weights))
        following = normalized(whole[0], on_host(block.following.norm)) @ as_float64(projections).T
        assert_near(whole[1], following, 4e-3)

    for rows in (1, 7, 8, 9, 16, 20, 32, 33, 64):
        first = (64 - rows) // 2
        some = run(workspace, block, x[first : first + rows], residual[first : first + rows])
        for one, all_ in zip(some, whole, strict=True):
            assert mx.array_equal(one, all_[first : first + rows]), rows


def test_windows_of_several_tokens_and_many_launches_in_one_evaluation() -> None:
    mx.random.seed(1)
    block = make_block(256, 256, 768, (256,))
    workspace = Workspace([block])

    def chain(x: mx.array, times: int) -> mx.array:
        h = x
        after = mx.zeros((1,))
        for _ in range(times):
            h, x = workspace.run(block, x, h, after)
            h, after = h * 0.5, x.reshape(-1)[:1]
        return h

    x = normal(8, 4, 256)
    whole = chain(x, 100)
    mx.eval(whole)  # chains in one evaluation run in the order of what they depend on only
    for _ in range(20):
        assert mx.array_equal(chain(x, 100), whole)
    assert mx.array_equal(chain(x[:3], 100), whole[:3])
    assert mx.array_equal(chain(x.reshape(32, 1, 256), 100).reshape(whole.shape), whole)
    mx.eval(workspace.run(block, x[:1], x[:1], mx.zeros((1,))))
    counted = np.array(workspace.counters)
    assert not counted[1:-1].any()  # all links' counts but the last's are at zero again
