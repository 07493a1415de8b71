"""Batches against mlx-lm's own generation, one prompt at a time: tokens, pages and states."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from memory_reader import assert_same_memory, read_sequence
from oracle import Oracle

from engine.build import Parts
from engine.engine import Engine
from engine.loading import DEMO_PROMPTS
from engine.sampling_params import SamplingParams

LENGTHS = (17, 1, 100, 15, 33, 16, 32, 5)
WHOLE = 512
MAX_TOKENS = 4
READ_AFTER = 2  # tokens said when memory is compared


@cache
def texts() -> str:
    lines = DEMO_PROMPTS.read_text().splitlines()
    return "\n".join(json.loads(line).get("prompt", "") for line in lines)


def engine_of(parts: Parts, **changes: object) -> Engine:
    """A new engine over memory that earlier ones left as it was."""
    return Engine(replace(parts, scheduler_config=replace(parts.scheduler_config, **changes)))


def prompts_of(engine: Engine, lengths: tuple[int, ...]) -> list[list[int]]:
    tokens = engine.tokenizer.encode(texts()[:4000])
    return [tokens[37 * number :][:length] for number, length in enumerate(lengths)]


@pytest.mark.parametrize("chunk", [16, 48, WHOLE])
@pytest.mark.parametrize("lengths", [LENGTHS[2:3], LENGTHS[:3], LENGTHS], ids=["1", "3", "8"])
def test_a_batch_says_and_keeps_what_mlx_lm_does_for_each_prompt_alone(
    model_name: str,
    lengths: tuple[int, ...],
    chunk: int,
    exact_parts: Callable[[str], Parts],
    oracle_of: Callable[[str], Oracle],
) -> None:
    engine = engine_of(exact_parts(model_name), prompt_tokens_per_round=chunk, prefix_cache=False)
    oracle = oracle_of(model_name)
    prompts = prompts_of(engine, lengths)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    said: dict[str, list[int]] = {engine.submit(prompt, params): [] for prompt in prompts}
    num_compared = 0
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id] += delta.token_ids
        for seq_id, sequence in engine.scheduler.sequences.items():
            if sequence.num_generated == READ_AFTER:
                computed = sequence.tokens[: sequence.computed]
                assert_same_memory(read_sequence(engine, seq_id), oracle.memory(computed))
                num_compared += 1

    assert list(said.values()) == [oracle.tokens(prompt, MAX_TOKENS) for prompt in prompts]
    assert num_compared == len(prompts)
