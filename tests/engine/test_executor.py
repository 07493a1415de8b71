"""Rounds on a tiny model: memory stays where it is, and what divides a batch changes nothing."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from by_hand import ByHand
from memory_reader import read_memory
from oracle import Oracle
from tiny_models import as_loaded, tiny_model

from engine.batch import Window
from engine.build import build_parts
from engine.division import cut_at_captures, cut_to_width, of_one_length
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.round import Capture, Row


def engine_of(model_type: str, *, max_context: int = 512, **options: object) -> Engine:
    loaded = as_loaded(tiny_model(model_type), model_type, max_context=max_context)
    return Engine(build_parts(loaded, EngineOptions(**options)))


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("qwen3", {"num_blocks": 16_000}),  # 65 MB of pages
        ("qwen3_5", {"num_blocks": 100, "max_checkpoint_bytes": 100_000_000}),
        ("mamba", {"num_blocks": 100, "max_checkpoint_bytes": 100_000_000}),
    ],
)
def test_no_step_copies_a_pool(model_type: str, options: dict[str, int]) -> None:
    engine = engine_of(model_type, max_rows=4, **options)
    layers = engine.parts.executor.store.layers
    largest = max(array.nbytes for layer in layers for array in layer.arrays)
    assert largest > 10_000_000
    for number in range(4):
        prompt = range(1, 20 + number)
        engine.submit(list(prompt), SamplingParams(max_tokens=12, temperature=0.0))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()  # a copy that a step leaves behind must not count as the pool
    while engine.has_work:
        engine.step()

    assert mx.get_peak_memory() - before < largest / 4


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_5"])
def test_live_memory_stays_flat_over_hundreds_of_steps(model_type: str) -> None:
    engine = engine_of(model_type, max_rows=2, num_blocks=80)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, SamplingParams(max_tokens=330, temperature=0.7, seed=1))
    for _ in range(20):
        engine.step()
    before = mx.get_active_memory()
    for _ in range(300):
        engine.step()

    assert mx.get_active_memory() - before < 20_000
    assert engine.stats().scheduler.generated_tokens == 640


def test_a_round_runs_the_model_once_for_prompts_and_once_for_decoding_rows() -> None:
    engine = engine_of("qwen3_5", max_rows=4, num_blocks=80)
    forward = engine.parts.executor.forward
    assert forward.num_calls == 0
    engine.submit([1, 2, 3], SamplingParams(max_tokens=5))
    engine.step()
    assert forward.num_calls == 1
    engine.submit([1] * 20, SamplingParams(max_tokens=5))
    engine.submit([2] * 30, SamplingParams(max_tokens=5))
    engine.step()
    assert forward.num_calls == 3
    engine.step()
    assert forward.num_calls == 4


def test_windows_are_cut_where_a_state_is_captured() -> None:
    first = Row(1, (1, 2, 3, 4, 5), 10, (1,), captures=(Capture(10, 8), Capture(12, 9)))
    second = Row(2, (6, 7), 0, (2,), captures=(Capture(2, 7),))

    stages = cut_at_captures([Window(first), Window(second)])

    assert [[window.row for window in stage] for stage in stages] == [
        [
            Row(1, (1, 2), 10, (1,), samples=False, captures=first.captures),
            second,
        ],
        [Row(1, (3, 4, 5), 12, (1,))],
    ]


def test_pieces_of_one_width_fold_first_and_draft_last() -> None:
    captures = (Capture(9, 7), Capture(12, 8), Capture(15, 9))
    first = Row(1, (1, 2, 3, 4, 5), 10, (1,), fold=2, captures=captures)
    drafting = Row(2, (6,), 3, (2,), fold=1, num_drafts=2)

    stages = cut_to_width([Window(first), Window(drafting, (8, 9))], 2)

    assert [[(window.row, window.drafts) for window in stage] for stage in stages] == [
        [
            (Row(1, (1, 2), 10, (1,), fold=2, samples=False, captures=captures[:2]), ()),
            (drafting, (8, 9)),
        ],
        [(Row(1, (3, 4), 12, (1,), samples=False), ())],
        [(Row(1, (5,), 14, (1,), captures=captures[2:]), ())],
    ]


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_5"])
def test_prompts_that_run_a_few_tokens_at_a_time_say_the_same(model_type: str) -> None:
    said = []
    for widest in (None, 3):
        engine = engine_of(model_type, max_rows=3, num_blocks=100, exact=True)
        store = engine.parts.executor.store
        store.method = replace(store.method, widest=widest)
        prompts = [list(range(1, length)) for length in (9, 42, 20, 42)]
        params = SamplingParams(max_tokens=6, temperature=0.7, seed=4, logprobs=1)
        answers = list(engine.generate(prompts, params))
        said.append([(one.token_ids, one.logprobs, one.usage) for one in answers])

    assert said[0] == said[1]


def test_rows_of_one_length_run_together_and_beginnings_apart() -> None:
    rows = [
        Window(Row(number, (1,) * length, start, (1,)))
        for number, (length, start) in enumerate([(2, 0), (1, 4), (2, 0), (1, 0), (1, 9)])
    ]

    groups = of_one_length(rows)

    assert [[window.row.seq_id for window in group] for group in groups] == [[0, 2], [1, 4], [3]]


@pytest.mark.parametrize("model_type", ["lfm2", "jamba", "recurrent_gemma"])
def test_a_state_captured_inside_a_window_is_that_of_the_tokens_before(model_type: str) -> None:
    by_hand = ByHand.over(as_loaded(tiny_model(model_type), model_type), 2)
    oracle = Oracle(tiny_model(model_type))
    tokens = list(range(1, 30))
    third, eighth, last = by_hand.spare_slots[:3]
    by_hand.run({0: tokens[:5], 1: [9]}, captures={0: [Capture(3, third)]})
    by_hand.run({0: tokens[5:]}, captures={0: [Capture(8, eighth), Capture(29, last)]})

    for slot, length in ((third, 3), (eighth, 8), (last, 29)):
        found = read_memory(by_hand.store, by_hand.tables[0], slot, length)[0]
        for array, expected in zip(found, oracle.memory(tokens[:length])[0], strict=True):
            np.testing.assert_allclose(array, expected, atol=1e-5)
