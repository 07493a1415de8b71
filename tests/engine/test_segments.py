"""Recurrences that stop: every row as if it ran alone, whatever the others' stops."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.recurrence.delta_rule import by_loop, by_products
from engine.recurrence.segments import Recurrence, Segments, plan_segments

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 1, 2, 4, 3

RowPlan = tuple[list[int], int, int]  # captures, certain end, length


@st.composite
def row_plans(draw: st.DrawFn) -> RowPlan:
    certain = draw(st.integers(1, 9))
    captures = sorted(draw(st.sets(st.integers(0, certain), max_size=3)))
    return captures, certain, certain + draw(st.integers(0, 3))


def inputs_of(rows: int, width: int) -> tuple[list[mx.array], mx.array]:
    random = np.random.default_rng(rows * 100 + width)

    def draw(*shape: int) -> mx.array:
        return mx.array(random.normal(size=(rows, *shape)).astype(np.float32))

    decay = mx.sigmoid(draw(width, VALUE_HEADS))
    keys = [draw(width, KEY_HEADS, KEY_DIM) for _ in range(2)]
    inputs = [*keys, draw(width, VALUE_HEADS, VALUE_DIM), decay, mx.sigmoid(decay)]
    return inputs, draw(VALUE_HEADS, VALUE_DIM, KEY_DIM)


def planned(plans: Sequence[RowPlan]) -> Segments:
    captures, certain, lengths = zip(*plans, strict=True)
    return plan_segments(captures, certain, lengths, max(lengths))


def alone(
    recurrence: Recurrence, inputs: list[mx.array], state: mx.array, row: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and state of a row's first tokens, run as a batch of one without any stop."""
    if length == 0:
        return np.zeros((0, VALUE_HEADS, VALUE_DIM), np.float32), np.array(state[row])
    cut = [part[row : row + 1, :length] for part in inputs]
    outputs, state = recurrence(cut, state[row : row + 1], None)
    return np.array(outputs[0]), np.array(state[0])


@settings(max_examples=60, deadline=None)
@given(plans=st.lists(row_plans(), min_size=1, max_size=4))
def test_rows_with_stops_of_their_own_are_bitwise_as_alone(plans: list[RowPlan]) -> None:
    segments = planned(plans)
    inputs, state = inputs_of(len(plans), segments.width)
    outputs, states = segments.run(by_loop, inputs, state)
    most = max(len(captures) for captures, _, _ in plans)

    assert outputs.shape[:2] == (len(plans), segments.width)
    for row, (captures, certain, length) in enumerate(plans):
        expected, _ = alone(by_loop, inputs, state, row, length)
        np.testing.assert_array_equal(np.array(outputs[row, :length]), expected)
        stops = [*captures, certain]
        for index, stop in enumerate(stops):
            kept = np.array(states[most - len(captures) + index][row])
            np.testing.assert_array_equal(kept, alone(by_loop, inputs, state, row, stop)[1])


@settings(max_examples=100, deadline=None)
@given(plans=st.lists(row_plans(), min_size=1, max_size=4))
def test_stops_never_go_back_and_end_at_the_rows_lengths(plans: list[RowPlan]) -> None:
    segments = planned(plans)
    has_drafts = any(length > certain for _, certain, length in plans)

    stops = np.stack(segments.stops)
    assert (np.diff(stops, axis=0) >= 0).all()
    assert (stops >= 0).all()
    assert stops[-1].tolist() == [length for _, _, length in plans]
    assert stops[-1 - has_drafts].tolist() == [certain for _, certain, _ in plans]


def test_a_batch_without_stops_or_padding_is_one_segment() -> None:
    assert planned([([], 4, 4), ([], 4, 4)]).is_whole
    assert not planned([([], 4, 4), ([], 3, 3)]).is_whole
    assert not planned([([2], 4, 4)]).is_whole


@settings(max_examples=20, deadline=None)
@given(plans=st.lists(row_plans(), min_size=1, max_size=3))
def test_the_fast_form_agrees_with_mlx_lms_loop_to_rounding(plans: list[RowPlan]) -> None:
    segments = planned(plans)
    inputs, state = inputs_of(len(plans), segments.width)
    outputs, states = segments.run(by_products, inputs, state)
    expected, expected_states = segments.run(by_loop, inputs, state)

    for row, (_, _, length) in enumerate(plans):
        found, wanted = np.array(outputs[row, :length]), np.array(expected[row, :length])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3 * np.abs(wanted).max())
    for found_state, wanted_state in zip(states, expected_states, strict=True):
        scale = float(mx.abs(wanted_state).max())
        np.testing.assert_allclose(
            np.array(found_state), np.array(wanted_state), rtol=1e-4, atol=1e-3 * scale
        )
