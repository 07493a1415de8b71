"""Every form of the gated delta rule says what mlx-lm's loop says, up to rounding."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.recurrence.chunked import CHUNK, by_chunks
from engine.recurrence.delta_rule import by_loop, by_products

FORMS = {"products": by_products, "chunks": by_chunks}


def random_case(rng, rows, time, value_heads=2, *, least_decay=0.5, key_heads=2, size=16):
    def draw(*shape):
        return mx.array(rng.normal(size=shape).astype(np.float32))

    q, k = draw(rows, time, key_heads, size), draw(rows, time, key_heads, size)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    v, state = draw(rows, time, value_heads, size), draw(rows, value_heads, size, size)
    g = mx.array(rng.uniform(least_decay, 1, (rows, time, value_heads)).astype(np.float32))
    beta = mx.array(rng.uniform(0, 1, (rows, time, value_heads)).astype(np.float32))
    return (q, k, v, g, beta), state


@pytest.mark.parametrize("form", FORMS)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 3),
    time=st.integers(1, 3 * CHUNK + 1),
    repeats=st.sampled_from([1, 2]),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_form_agrees_with_the_loop(  # noqa: PLR0917  # what hypothesis draws
    form, seed, rows, time, repeats, data
) -> None:
    rng = np.random.default_rng(seed)
    inputs, state = random_case(rng, rows, time, 2 * repeats)
    lengths = data.draw(st.lists(st.integers(0, time), min_size=rows, max_size=rows))
    valid = np.arange(time) < np.array(lengths)[:, None]
    mask = None if valid.all() else mx.array(valid)
    outputs, after = FORMS[form](inputs, state, mask)
    expected, expected_after = by_loop(inputs, state, mask)

    np.testing.assert_allclose(after, expected_after, atol=3e-5, rtol=1e-4)
    np.testing.assert_allclose(
        np.array(outputs)[valid], np.array(expected)[valid], atol=3e-5, rtol=1e-4
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_decay_of_zero_forgets_everything_before(form) -> None:
    rng = np.random.default_rng(0)
    (q, k, v, g, beta), state = random_case(rng, 2, 2 * CHUNK)
    g[:, 5] = 0
    outputs, after = FORMS[form]((q, k, v, g, beta), state, None)
    expected, expected_after = by_loop((q, k, v, g, beta), state, None)
    np.testing.assert_allclose(after, expected_after, atol=3e-5)
    np.testing.assert_allclose(outputs, expected, atol=3e-5)


def test_strong_decay_over_long_prompts_stays_finite() -> None:
    rng = np.random.default_rng(1)
    inputs, state = random_case(rng, 1, 20 * CHUNK, least_decay=0.0)
    outputs, after = by_chunks(inputs, state, None)
    expected, expected_after = by_loop(inputs, state, None)
    np.testing.assert_allclose(after, expected_after, atol=1e-4)
    np.testing.assert_allclose(outputs, expected, atol=1e-4)


def test_chunks_cut_on_their_grid_give_the_bits_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    inputs, state = random_case(rng, 1, 4 * CHUNK)
    whole, whole_after = by_chunks(inputs, state, None)
    first, between = by_chunks([x[:, : 2 * CHUNK] for x in inputs], state, None)
    second, after = by_chunks([x[:, 2 * CHUNK :] for x in inputs], between, None)
    assert mx.array_equal(mx.concatenate([first, second], axis=1), whole)
    assert mx.array_equal(after, whole_after)
