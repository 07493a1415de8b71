"""Rows of the next round are launched before this one is read, and no answer shows it."""

from dataclasses import replace

import pytest
from ahead_engines import GREEDY, PROMPTS, SAMPLED, by_request, drive, engine_of, said, submit_all
from memory_reader import assert_same_memory, read_memory
from oracle import Oracle
from tiny_models import as_loaded, tiny_model

from engine.build import build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams


def cases() -> list[tuple[list[int], SamplingParams]]:
    """Ways to pick and to end whose rows can be launched ahead."""
    return [
        (PROMPTS[0], replace(GREEDY, logprobs=2)),
        (PROMPTS[1], replace(SAMPLED, n=2, logprobs=0)),
        (PROMPTS[2], replace(SAMPLED, top_p=0.7, logprobs=3, logprobs_mode="processed")),
        (PROMPTS[3], replace(SAMPLED, top_k=5, min_p=0.05, prompt_logprobs=1)),
        (PROMPTS[0], replace(GREEDY, max_tokens=1)),
        (PROMPTS[1], replace(SAMPLED, max_tokens=2, seed=3)),
        (PROMPTS[2], replace(GREEDY, logit_bias={5: 3.0}, banned_tokens=(9, 10))),
        (PROMPTS[0], replace(SAMPLED, stop_token_ids=tuple(range(0, 96, 9)), seed=1)),
        (PROMPTS[3], replace(SAMPLED, stop_token_ids=tuple(range(0, 96, 9)), min_tokens=6, seed=2)),
        (PROMPTS[2], replace(SAMPLED, stop=("a", "b", "c", "9"), seed=4)),
        (PROMPTS[1], replace(GREEDY, max_tokens=40)),
    ]


@pytest.mark.parametrize("in_order", [False, True])
def test_running_ahead_changes_no_delta_of_any_request(model_type: str, in_order: bool) -> None:
    found = {}
    for ahead in (False, True):
        engine = engine_of(model_type, ahead=ahead, in_order=ahead and in_order)
        submit_all(engine, cases())
        found[ahead] = by_request(drive(engine, {}))
        assert engine.stats().scheduler.failures == 0

    assert found[True] == found[False]
    reasons = {deltas[-1].finish_reason for deltas in found[True].values()}
    assert reasons == {"length", "stop"}
    for delta in found[True]["r0", 0]:
        assert [one.token_id for one in delta.logprobs] == [*delta.token_ids]


def test_penalties_beside_others_change_nothing_either(model_type: str) -> None:
    some = [
        *cases()[:4],
        (PROMPTS[0], replace(SAMPLED, repetition_penalty=1.3, max_tokens=6)),
        (PROMPTS[2], replace(GREEDY, frequency_penalty=0.5, max_tokens=9)),
    ]
    found = {}
    for ahead in (False, True):
        engine = engine_of(model_type, ahead=ahead)
        submit_all(engine, some)
        found[ahead] = by_request(drive(engine, {}))
        assert engine.stats().scheduler.failures == 0

    assert found[True] == found[False]


def test_requests_come_and_go_pause_and_are_cancelled_without_changing_the_others(
    model_type: str,
) -> None:
    found = {}
    for ahead in (False, True):
        engine = engine_of(model_type, ahead=ahead, num_blocks=30)
        script = {
            0: lambda engine=engine: submit_all(engine, cases()[:4]),
            4: lambda engine=engine: engine.pause("r0"),
            6: lambda engine=engine: engine.submit(PROMPTS[1], GREEDY, request_id="later"),
            9: lambda engine=engine: engine.cancel("r1"),
            12: lambda engine=engine: engine.pause("r2"),
            14: lambda engine=engine: engine.resume("r0"),
            15: lambda engine=engine: engine.cancel("r2"),
            17: lambda engine=engine: engine.submit(PROMPTS[3], SAMPLED, request_id="last"),
        }
        found[ahead] = by_request(drive(engine, script))
        assert engine.stats().scheduler.failures == 0

    assert found[True].keys() == found[False].keys()
    for key, deltas in found[True].items():
        assert said(deltas) == said(found[False][key])[: len(said(deltas))]
        assert deltas[-1].finish_reason == found[False][key][-1].finish_reason
    assert sum(one[-1].finish_reason == "cancelled" for one in found[True].values()) == 3


def test_what_is_kept_of_a_launched_sequence_stands_one_token_further(model_type: str) -> None:
    oracle = Oracle(tiny_model(model_type))
    engine = engine_of(model_type, ahead=True)
    submit_all(engine, [(prompt, replace(SAMPLED, seed=n)) for n, prompt in enumerate(PROMPTS)])
    num_launched = 0
    while engine.has_work:
        engine.step()
        launched = {row.seq_id for row in engine.scheduler.launched}
        num_launched += len(launched)
        for seq_id, sequence in engine.scheduler.sequences.items():
            length = sequence.computed + (seq_id in launched)
            if sequence.finish is None and length:
                expected = oracle.memory(sequence.tokens[:length])
                store = engine.parts.executor.store
                kept = read_memory(store, list(sequence.blocks), sequence.slot, length)
                assert_same_memory(kept, expected)

    assert num_launched == 4 * (24 - 1)


def test_requests_that_preempt_each_other_while_launched_say_what_they_say_alone(
    model_type: str,
) -> None:
    oracle = Oracle(tiny_model(model_type))
    engine = engine_of(model_type, ahead=True, num_blocks=8, max_rows=3)
    prompts = [[number] * 12 for number in range(5)]
    submit_all(engine, [(prompt, GREEDY) for prompt in prompts])
    found = by_request(drive(engine, {}))

    assert engine.stats().scheduler.preemptions > 0
    for number, prompt in enumerate(prompts):
        assert said(found[f"r{number}", 0]) == oracle.tokens(prompt, 30)


def test_a_hit_on_what_ended_while_launched_says_what_it_says_alone(model_type: str) -> None:
    oracle = Oracle(tiny_model(model_type))
    engine = engine_of(model_type, ahead=True)
    expected = oracle.tokens(PROMPTS[0], 40)
    for end in range(12, 36):  # across two block boundaries
        stop = replace(GREEDY, max_tokens=40, stop_token_ids=(expected[end],))
        [answer] = engine.generate([PROMPTS[0]], stop)
        told = [*PROMPTS[0], *answer.token_ids]
        assert answer.token_ids == expected[: len(answer.token_ids)]
        assert answer.finish_reason == "stop"
        [after] = engine.generate([[*told, 11, 12, 13]], replace(GREEDY, max_tokens=6))
        assert after.token_ids == oracle.tokens([*told, 11, 12, 13], 6)

    assert engine.stats().scheduler.hit_tokens > 0


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_the_cpu_backend_may_run_ahead_too(family: str) -> None:
    found = []
    for ahead in (False, True):
        loaded = as_loaded(tiny_model(family), family)
        options = EngineOptions(
            max_rows=4, num_blocks=60, check=True, backend="cpu", async_scheduling=ahead
        )
        engine = Engine(build_parts(loaded, options))
        assert engine.parts.runs_ahead is ahead
        found.append([answer.token_ids for answer in engine.generate(PROMPTS, SAMPLED)])

    assert found[0] == found[1]
