"""What benchmarks.decode_steps times: batches with a prefix and without, in turns on one engine."""

from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3, qwen3_5

from benchmarks.decode_steps import Batches, make_prompts
from benchmarks.gpu_step import make_engine
from benchmarks.shapes import DENSE_06B, HYBRID_08B
from engine import Engine

ROWS, CONTEXT, PREFIX = 4, 40, 64
TINY = {
    "vocab_size": 8192,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
TINY_DELTA = {
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@cache
def tiny_model(kind: str) -> Any:
    mx.random.seed(0)
    if kind == "dense":
        return qwen3.Model(qwen3.ModelArgs.from_dict(DENSE_06B | TINY))
    config = {"model_type": "qwen3_5", "text_config": HYBRID_08B | TINY | TINY_DELTA}
    return qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))


def engine_for(kind: str, *, prefix: int = PREFIX, ahead: bool = False) -> Engine:
    """An engine whose rounds run ahead or not, as on kernels that need no wait."""
    sizes = {"rows": ROWS, "context": CONTEXT, "prefix": prefix, "max_checkpoint_bytes": 1 << 20}
    parts = make_engine(kind, tiny_model(kind), "portable", **sizes).parts
    parts.executor.in_order = ahead
    return Engine(replace(parts, options=replace(parts.options, async_scheduling=ahead)))


def test_prompts_of_all_batches_share_the_prefix_and_nothing_else() -> None:
    batches = [make_prompts(ROWS, CONTEXT, PREFIX, batch) for batch in range(3)]
    prompts = [prompt for batch in batches for prompt in batch]
    assert {len(prompt) for prompt in prompts} == {PREFIX + CONTEXT}
    assert len({tuple(prompt[:PREFIX]) for prompt in prompts}) == 1
    plain = [prompt for batch in range(3) for prompt in make_prompts(ROWS, PREFIX, 0, batch)]
    starts = [prompt[PREFIX:] for prompt in prompts] + plain + [prompts[0][:PREFIX]]
    assert len({tuple(start[:16]) for start in starts}) == len(starts)


def test_an_engine_has_blocks_for_a_shared_prefix_once() -> None:
    def blocks(prefix: int) -> int:
        found = engine_for("dense", prefix=prefix).parts.options.num_blocks
        assert found is not None
        return found

    assert [blocks(prefix) - blocks(0) for prefix in (16, 64, 80)] == [
        1,
        5,
        6,
    ]  # a quarter to spare


@pytest.mark.parametrize(("kind", "ahead"), [("dense", False), ("dense", True), ("hybrid", True)])
def test_both_kinds_of_batches_decode_in_full_and_only_the_prefix_is_found(
    kind: str, ahead: bool
) -> None:
    engine = engine_for(kind, ahead=ahead)
    batches = Batches(engine, ROWS, CONTEXT)
    found = []
    for prefix in (PREFIX, 0, PREFIX):
        before = engine.stats().scheduler.hit_tokens
        assert batches.step_seconds(prefix) > 0
        assert not engine.has_work
        found.append(engine.stats().scheduler.hit_tokens - before)
    assert found == [(ROWS - 1) * PREFIX, 0, ROWS * PREFIX]


def test_a_prefix_that_is_not_shared_is_an_error() -> None:
    parts = engine_for("dense").parts
    config = replace(parts.scheduler_config, prefix_cache=False)
    batches = Batches(Engine(replace(parts, scheduler_config=config)), ROWS, CONTEXT)
    with pytest.raises(RuntimeError, match="4 rows found 0 tokens of a prefix of 64"):
        batches.step_seconds(PREFIX)


def test_steps_in_which_a_row_has_ended_are_an_error() -> None:
    batches = Batches(engine_for("dense"), ROWS + 1, CONTEXT)  # a row waits for an answer to end
    with pytest.raises(RuntimeError, match="not all of 5 rows decoded"):
        batches.step_seconds(0)
