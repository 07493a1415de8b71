"""The deferred form of the delta rule against mlx-lm's loop, over any mix of windows and folds."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.gated_delta import compute_g, normalize_qk

from engine.recurrence.chunked import LEAST_DECAY
from engine.recurrence.deferred import fold, no_records, run
from engine.recurrence.delta_rule import by_loop
from engine.recurrence.few_tokens import read_few
from engine.recurrence.one_token import log_gates, read_one, unit_q_k


def draw_inputs(rows: int, time: int, heads: tuple[int, int], seed: int) -> list[mx.array]:
    """q, k, v, g and beta as a layer makes them: unit keys, decays and strengths in (0, 1)."""
    chance = np.random.default_rng(seed)
    key_heads, value_heads = heads
    q, k = chance.normal(size=(2, rows, time, key_heads, 16))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = chance.normal(size=(rows, time, value_heads, 8))
    g, beta = chance.uniform(size=(2, rows, time, value_heads))
    g[chance.uniform(size=g.shape) < 0.1] = 0.0  # forgets everything
    return [mx.array(array.astype(np.float32)) for array in (q, k, v, g, beta)]


@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    folds=st.sets(st.integers(0, 5)),
    heads=st.sampled_from([(2, 2), (2, 4), (1, 3)]),
    seed=st.integers(0, 1000),
)
def test_windows_and_folds_equal_the_loop(windows, folds, heads, seed) -> None:
    rows, total = 3, sum(windows)
    inputs = draw_inputs(rows, total, heads, seed)
    state = mx.array(np.random.default_rng(seed).normal(size=(rows, heads[1], 8, 16)))
    state = state.astype(mx.float32)
    expected, last = by_loop(inputs, state, None)

    records, start, outputs = no_records(state, heads[0]), 0, []
    for number, time in enumerate(windows):
        if number in folds:
            state, records = fold(state, records), no_records(state, heads[0])
        read, made = run([x[:, start : start + time] for x in inputs], state, records)
        outputs.append(read)
        records, start = records.then(made), start + time
    assert mx.allclose(mx.concatenate(outputs, axis=1), expected, rtol=1e-3, atol=1e-4)
    assert mx.allclose(fold(state, records), last, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rejected", [[3, 3, 3], [1, 2, 3], [4, 0, 2]])
def test_records_that_do_not_count_leave_no_trace(rejected) -> None:
    """Rows reject different numbers of drafts: they go on as if those had never been."""
    rows, heads = 3, (2, 4)
    drafts, later = draw_inputs(rows, 5, heads, 1), draw_inputs(rows, 2, heads, 2)
    state = mx.random.normal((rows, 4, 8, 16), key=mx.random.key(3))
    _, made = run(drafts, state, no_records(state, heads[0]))
    kept = [5 - count for count in rejected]
    made = made.with_valid(np.arange(5) < np.array(kept)[:, None])
    outputs, new = run(later, state, made)
    after = fold(state, made.then(new))
    for row, count in enumerate(kept):
        joined = [
            mx.concatenate([x[row : row + 1, :count], y[row : row + 1]], axis=1)
            for x, y in zip(drafts, later, strict=True)
        ]
        expected, last = by_loop(joined, state[row : row + 1], None)
        assert mx.allclose(outputs[row], expected[0, count:], rtol=1e-3, atol=1e-4)
        assert mx.allclose(after[row], last[0], rtol=1e-3, atol=1e-4)


def test_rows_are_taken_with_what_counts_of_them() -> None:
    inputs = draw_inputs(3, 4, (2, 2), 5)
    state = mx.random.normal((3, 2, 8, 16), key=mx.random.key(1))
    _, made = run(inputs, state, no_records(state, 2))
    made = made.with_valid(np.arange(4) < np.array([[1], [0], [4]]))
    folded = fold(state, made)
    taken = fold(state[mx.array([2, 0])], made.rows([2, 0]))
    assert mx.array_equal(taken, folded[mx.array([2, 0])])
    assert mx.array_equal(folded[1], state[1])


@pytest.mark.parametrize("heads", [(2, 2), (2, 4), (1, 3)])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("time", [1, 2, 3, 5])
def test_a_few_tokens_in_few_operations_are_a_window(heads, count, time) -> None:
    """From projected gates and channels of any length on; some records do not count."""
    rows, scale, eps = 3, 0.25, 1e-6
    state = mx.random.normal((rows, heads[1], 8, 16), key=mx.random.key(3))
    records = no_records(state, heads[0])
    if count:
        _, records = run(draw_inputs(rows, count, heads, 1), state, records)
        records = records.with_valid(np.arange(count) < np.array([[count], [1], [0]]))
    q, k, v, _, _ = draw_inputs(rows, time, heads, 2)
    q, k = 3 * q, 1e-3 * k
    a, b = (mx.random.normal((rows, time, heads[1]), key=mx.random.key(n)) for n in range(2))
    decay, bias = (mx.random.normal((heads[1],), key=mx.random.key(n)) for n in range(2, 4))

    units = normalize_qk(q, k, inv_scale=scale, eps=eps)
    expected, made = run([*units, v, compute_g(decay, a, bias), mx.sigmoid(b)], state, records)
    wanted = records.then(made)

    q_k, v = mx.stack([q, k], axis=1).transpose(0, 3, 1, 2, 4), v.swapaxes(1, 2)
    log_decay, beta = (one.swapaxes(1, 2) for one in log_gates(mx.exp(decay), bias, a, b))
    if time == 1:
        q_k = unit_q_k(q_k[:, :, :, 0], scale, eps)
        read, made = read_one(q_k, v, (log_decay, beta), state, records)
        found = records.then(made)
    else:
        q_k = unit_q_k(q_k, scale, eps)
        read, found = read_few(q_k, v, (log_decay, beta), state, records)
    assert mx.allclose(read.swapaxes(1, 2), expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in ((found.k, wanted.k), (found.u, wanted.u), (found.log, wanted.log)):
        assert mine.shape == theirs.shape
        assert mx.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert found.valid.tolist() == wanted.valid.tolist()


def test_rejected_records_and_decays_that_forget_everything_leave_a_few_tokens_alone() -> None:
    """What does not count may be larger than any number that there is."""
    rows, heads, kept = 3, (2, 4), [5, 2, 0]
    drafts, later = draw_inputs(rows, 5, heads, 1), draw_inputs(rows, 4, heads, 2)
    later[3][:, 1:3] = 0.0
    state = mx.random.normal((rows, 4, 8, 16), key=mx.random.key(3))
    _, made = run(drafts, state, no_records(state, heads[0]))
    made = made.with_valid(np.arange(5) < np.array(kept)[:, None])
    q, k, v, g, beta = later
    q_k = mx.stack([q, k], axis=1).transpose(0, 3, 1, 2, 4)
    log_decay = mx.log(mx.maximum(g, LEAST_DECAY)).swapaxes(1, 2)
    read, found = read_few(q_k, v.swapaxes(1, 2), (log_decay, beta.swapaxes(1, 2)), state, made)
    after = fold(state, found)
    for row, count in enumerate(kept):
        joined = [
            mx.concatenate([x[row : row + 1, :count], y[row : row + 1]], axis=1)
            for x, y in zip(drafts, later, strict=True)
        ]
        expected, last = by_loop(joined, state[row : row + 1], None)
        outputs = read.swapaxes(1, 2)[row]
        assert mx.allclose(outputs, expected[0, count:], rtol=1e-3, atol=1e-4)
        assert mx.allclose(after[row], last[0], rtol=1e-3, atol=1e-4)
