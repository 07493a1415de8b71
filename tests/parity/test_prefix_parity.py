"""Shared prefixes on the embedded hybrid, exact: a hit changes no token and no state."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from memory_reader import Memory, assert_same_memory, read_sequence
from test_generation_parity import texts

from engine.build import Parts, build
from engine.engine import Engine
from engine.sampling_params import SamplingParams

BLOCK = 16
SHARED = 1000
USERS = 8
READ_AFTER = 3
PARAMS = SamplingParams(max_tokens=8, temperature=0.8, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Room for eight users of a long prefix."""
    return build("demo", max_rows=USERS, num_blocks=200, max_context=1200, exact=True, check=True)


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams = PARAMS
) -> tuple[list[list[int]], list[Memory], int]:
    """Run ``prompts`` together: ids, memory of each in the middle of its answer, cached tokens."""
    said: dict[str, list[int]] = {engine.submit(list(prompt), params): [] for prompt in prompts}
    order, memories, cached = list(said), {}, 0
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id] += delta.token_ids
            cached += delta.usage.cached_tokens if delta.usage else 0
        for seq_id, sequence in engine.scheduler.sequences.items():
            if sequence.num_generated == READ_AFTER and sequence.finish is None:
                memories[sequence.request.request_id] = read_sequence(engine, seq_id)
    return [said[one] for one in order], [memories[one] for one in order], cached


def new_engine(parts: Parts, **changes: object) -> Engine:
    return Engine(replace(parts, scheduler_config=replace(parts.scheduler_config, **changes)))


def users(engine: Engine, count: int, shared: int = SHARED) -> list[list[int]]:
    tokens = engine.tokenizer.encode(texts())
    return [[*tokens[:shared], 100 + 7 * user, 200 + user, 300 + user] for user in range(count)]


@pytest.mark.parametrize("length", [3 * BLOCK, 3 * BLOCK + 1, 3 * BLOCK + 9])
def test_cold_hit_and_evicted_prompts_say_and_keep_the_same(parts: Parts, length: int) -> None:
    engine = new_engine(parts)
    prompt = engine.tokenizer.encode(texts())[:length]
    cold = run(engine, [prompt])
    hit = run(engine, [prompt])
    engine.scheduler.clear_cache()
    again = run(engine, [prompt])

    usable = (length - 1) // BLOCK * BLOCK
    assert [cold[2], hit[2], again[2]] == [0, usable, 0]
    for other in (hit, again):
        assert other[0] == cold[0]
        assert_same_memory(other[1][0], cold[1][0])


def test_users_of_a_long_shared_prefix_say_what_each_says_alone(parts: Parts) -> None:
    engine = new_engine(parts)
    prompts = users(engine, USERS)
    together = run(engine, prompts)
    spared = SHARED // BLOCK * BLOCK
    assert together[2] == (USERS - 1) * spared, "all but the first take the prefix over"
    for number in (0, 3, USERS - 1):
        alone = run(new_engine(parts, prefix_cache=False), [prompts[number]])
        assert together[0][number] == alone[0][0]
        assert_same_memory(together[1][number], alone[1][0])


def test_samples_of_one_request_say_what_each_says_by_itself(parts: Parts) -> None:
    engine = new_engine(parts)
    [prompt] = users(engine, 1, shared=40)
    answers = list(engine.generate([prompt], replace(PARAMS, n=4)))
    apart = list(new_engine(parts, prefix_cache=False).generate([prompt], replace(PARAMS, n=4)))
    assert [one.token_ids for one in answers] == [one.token_ids for one in apart]
    assert len({tuple(one.token_ids) for one in answers}) > 1


def test_preempted_requests_say_and_keep_what_undisturbed_ones_do(parts: Parts) -> None:
    long = replace(PARAMS, max_tokens=40)
    engine = new_engine(parts, num_blocks=12)
    prompts = users(engine, 4, shared=20)
    crowded = run(engine, prompts, long)
    undisturbed = run(new_engine(parts), prompts, long)
    assert engine.stats().scheduler.preemptions > 0
    assert crowded[0] == undisturbed[0]
    for ours, theirs in zip(crowded[1], undisturbed[1], strict=True):
        assert_same_memory(ours, theirs)
