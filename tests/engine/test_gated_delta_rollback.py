"""Write on accept: drafts are recorded, accepted ones folded, and no rejected one ever shows."""

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from by_hand import ByHand
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_reader import assert_same_memory, read_memory
from oracle import Oracle
from tiny_models import VOCABULARY, tiny_model

from engine.recurrence.gated_delta import NATIVE
from scheduler.round import BlockCopy, Capture, SlotCopy

MAX_DRAFTS = 3
FAMILIES = ["qwen3_5", "qwen3_next"]


@cache
def oracle(model_type: str) -> Oracle:
    return Oracle(tiny_model(model_type))


@cache
def model(model_type: str) -> Any:
    return tiny_model(model_type)


class History:
    """Sequences by hand beside the tokens that each has really committed."""

    def __init__(self, model_type: str, num_rows: int) -> None:
        self.oracle = oracle(model_type)
        self.by_hand = ByHand.drafting(tiny_model(model_type), num_rows, MAX_DRAFTS)
        self.computed: list[list[int]] = [[] for _ in range(num_rows)]

    def run(
        self,
        windows: dict[int, list[int]],
        drafts: dict[int, list[int]],
        accepted: dict[int, int],
        captures: dict[int, list[Capture]] | None = None,
    ) -> None:
        """Run a round, and check every logit and every captured state against the oracle."""
        before = {number: self.computed[number] + tokens for number, tokens in windows.items()}
        logits = self.by_hand.run(windows, drafts=drafts, captures=captures)
        for number, lines in logits.items():
            said = drafts.get(number, [])
            for ahead, line in enumerate(lines):
                expected = self.oracle.logits(before[number] + said[:ahead])
                np.testing.assert_array_equal(line, expected)
            self.computed[number] = before[number] + said[: accepted.get(number, 0)]
            self.by_hand.accept(number, accepted.get(number, 0))
            for capture in (captures or {}).get(number, ()):
                self.check(number, capture.slot, capture.position)

    def check(self, number: int, slot: int, length: int) -> None:
        """Compare the states in ``slot`` with the oracle's after a sequence's first tokens."""
        table = self.by_hand.tables[number]
        found = read_memory(self.by_hand.store, table, slot, length)
        assert_same_memory(found, self.oracle.memory(self.computed[number][:length]))

    def check_all(self) -> None:
        """Let every sequence run a token, which folds what it accepted, and compare its memory."""
        numbers = [number for number, tokens in enumerate(self.computed) if tokens]
        self.run({number: [number + 1] for number in numbers}, {}, {})
        for number in numbers:
            self.check(number, self.by_hand.slots[number], len(self.computed[number]))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_rows_that_accept_differently_fold_what_each_accepted(model_type: str) -> None:
    history = History(model_type, 4)
    history.run({0: [1, 2, 3], 1: [4], 2: [5] * 20, 3: [6, 7]}, {}, {})
    drafts = {0: [10, 11, 12], 1: [13, 14, 15], 2: [16], 3: []}
    history.run({0: [8], 1: [9], 2: [8], 3: [9]}, drafts, {0: 0, 1: 3, 2: 1, 3: 0})
    history.run({0: [21], 1: [22], 2: [23], 3: [24]}, drafts, {0: 2, 1: 1, 2: 0})
    history.check_all()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_state_is_captured_within_the_fold_at_the_start_and_within_the_window(
    model_type: str,
) -> None:
    history = History(model_type, 2)
    first, second, third, fourth, fifth = history.by_hand.spare_slots[:5]
    history.run({0: [1, 2, 3, 4], 1: [5] * 9}, {}, {}, {0: [Capture(4, fifth)]})
    history.run({0: [6], 1: [7]}, {0: [8, 9, 10], 1: [11]}, {0: 3, 1: 1})
    history.run(
        {0: [12, 13, 14], 1: [15, 16]},
        {},
        {},
        {
            0: [Capture(6, first), Capture(8, second), Capture(10, third)],
            1: [Capture(11, fourth)],
        },
    )
    history.check(0, fifth, 4)
    history.check_all()


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[int, tuple[int, int, int]]]:
    """Rounds of rows: tokens of the window, drafts, accepted drafts."""
    row = st.one_of(
        st.tuples(st.integers(1, 9), st.just(0), st.just(0)),
        st.integers(0, MAX_DRAFTS).flatmap(
            lambda count: st.tuples(st.just(1), st.just(count), st.integers(0, count))
        ),
    )
    return draw(
        st.lists(st.dictionaries(st.integers(0, 2), row, min_size=1), min_size=1, max_size=6)
    )


@settings(max_examples=12, deadline=None)
@given(plan=rounds(), random=st.randoms(use_true_random=False))
def test_any_history_of_windows_drafts_and_captures_keeps_the_accepted_tokens_only(
    plan: list[dict[int, tuple[int, int, int]]], random: Any
) -> None:
    history = History("qwen3_5", 3)
    for rows in plan:
        spare = list(history.by_hand.spare_slots)
        windows, drafts, accepted, captures = {}, {}, {}, {}
        for number, (length, num_drafts, num_accepted) in rows.items():
            start = history.by_hand.computed[number]
            windows[number] = [random.randrange(VOCABULARY) for _ in range(length)]
            drafts[number] = [random.randrange(VOCABULARY) for _ in range(num_drafts)]
            accepted[number] = num_accepted
            least = max(1, start - history.by_hand.folds[number])
            points = range(least, start + length + 1)
            chosen = sorted(random.sample(points, min(len(points), random.randrange(3))))
            captures[number] = [Capture(position, spare.pop()) for position in chosen]
        history.run(windows, drafts, accepted, captures)
    history.check_all()


def test_a_fork_copies_state_records_and_what_is_not_folded_yet() -> None:
    history = History("qwen3_5", 2)
    by_hand = history.by_hand
    history.run({0: [1, 2, 3]}, {}, {})
    history.run({0: [4]}, {0: [5, 6, 7]}, {0: 3})
    blocks = BlockCopy(by_hand.tables[0][0], by_hand.tables[1][0])
    by_hand.store.copy([blocks], [SlotCopy(by_hand.slots[0], by_hand.slots[1])])
    by_hand.computed[1], by_hand.folds[1] = 5, 1  # it kept one of the three drafts
    history.computed[1] = [1, 2, 3, 4, 5]

    history.run({1: [9]}, {1: [8]}, {1: 1})
    history.check_all()


def test_a_sequence_that_begins_ignores_what_its_slot_held() -> None:
    by_hand = ByHand.drafting(tiny_model("qwen3_5"), 1, MAX_DRAFTS)
    for layer in by_hand.store.layers[::2]:
        for array in layer.arrays:
            array[:] = mx.nan
        mx.eval(layer.arrays)
    logits = by_hand.run({0: [1, 2, 3]}, drafts={0: [4, 5]})

    np.testing.assert_array_equal(logits[0][2], oracle("qwen3_5").logits([1, 2, 3, 4, 5]))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_swapped_module_serves_mlx_lm_as_its_own_class_does(model_type: str) -> None:
    swapped, tokens = tiny_model(model_type), list(range(20))
    ByHand.drafting(swapped, 1, MAX_DRAFTS)

    assert {type(layer.linear_attn) for layer in swapped.layers if layer.is_linear} <= set(
        NATIVE.values()
    )
    assert_same_memory(Oracle(swapped).memory(tokens), oracle(model_type).memory(tokens))
