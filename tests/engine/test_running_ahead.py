"""Rows of the next round are launched before this one is read, and no answer shows it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from memory_reader import assert_same_memory, read_memory
from oracle import Oracle
from tiny_models import as_loaded, tiny_model

from engine.answer import Answer, Delta
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.round import UNKNOWN

FAMILIES = ["qwen3", "qwen3_5", "jamba"]
GREEDY = SamplingParams(max_tokens=30, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, seed=7)
PROMPTS = [[1, 2, 3], [4] * 20, [5, 6], [7] * 40]


class Broken(Exception):
    """What the tests inject."""


@cache
def parts_of(model_type: str) -> Parts:
    options = EngineOptions(
        max_rows=4, num_blocks=60, exact=True, check=True, prompt_tokens_per_round=32
    )
    return build_parts(as_loaded(tiny_model(model_type), model_type), options)


def engine_of(model_type: str, *, ahead: bool, in_order: bool = False, **changes: Any) -> Engine:
    """An engine whose rounds run ahead or not; ``in_order`` as if on kernels that need no wait."""
    parts = parts_of(model_type)
    parts.executor.in_order = in_order
    return Engine(
        replace(
            parts,
            options=replace(parts.options, async_scheduling=ahead),
            scheduler_config=replace(parts.scheduler_config, **changes),
        )
    )


@pytest.fixture(params=FAMILIES)
def model_type(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    parts_of(request.param).executor.in_order = False


def drive(engine: Engine, script: dict[int, Callable[[], Any]]) -> list[Delta]:
    """Step to the end, doing at some steps what ``script`` says; check that nothing is left."""
    deltas, number = [], 0
    while engine.has_work or any(at >= number for at in script):
        if number in script:
            script[number]()
        deltas += engine.step()
        number += 1
    assert_nothing_left(engine)
    return deltas


def assert_nothing_left(engine: Engine) -> None:
    stats = engine.stats().scheduler
    assert not engine._runs
    assert not engine._ids
    assert not engine.scheduler.launched
    assert not len(engine.parts.executor.unread)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots


def by_request(deltas: list[Delta]) -> dict[tuple[str, int], list[Delta]]:
    found: dict[tuple[str, int], list[Delta]] = {}
    for delta in deltas:
        found.setdefault((delta.request_id, delta.index), []).append(delta)
    return found


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


def submit_all(engine: Engine, some: list[tuple[list[int], SamplingParams]]) -> None:
    for number, (prompt, params) in enumerate(some):
        engine.submit(prompt, params, request_id=f"r{number}")


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


def said(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


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


def num_forwards(engine: Engine, params: list[SamplingParams]) -> int:
    """Forward passes that requests of these parameters take, which start in the same round."""
    forward = engine.parts.executor.forward
    before = forward.num_calls
    submit_all(engine, [([number, 2], one) for number, one in enumerate(params)])
    drive(engine, {})
    return forward.num_calls - before


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 20])
def test_decoding_to_a_limit_runs_no_forward_pass_in_vain(model_type: str, max_tokens: int) -> None:
    params = [replace(GREEDY, max_tokens=max_tokens)] * 3

    assert num_forwards(engine_of(model_type, ahead=True), params) == max_tokens


def test_an_ending_nobody_foresaw_costs_one_forward_pass_at_most(model_type: str) -> None:
    [alone] = engine_of(model_type, ahead=False).generate([[0, 2]], GREEDY)
    stop_at = next(
        n for n, one in enumerate(alone.token_ids) if one not in alone.token_ids[:n] and n
    )
    params = replace(GREEDY, stop_token_ids=(alone.token_ids[stop_at],))

    assert num_forwards(engine_of(model_type, ahead=False), [params]) == stop_at + 1
    assert num_forwards(engine_of(model_type, ahead=True), [params]) == stop_at + 2


def test_the_next_forward_pass_is_begun_before_the_round_is_read(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True)
    events = []
    executor = engine.parts.executor
    launch, read = executor.launch, executor.read

    def launching(round_: Any, *args: Any) -> None:
        events.append(
            ("launch", [row.tokens == (UNKNOWN,) for row in round_.rows if not row.launched])
        )
        launch(round_, *args)

    def reading(round_: Any, *args: Any) -> Any:
        events.append(("read", [row.launched for row in round_.rows]))
        return read(round_, *args)

    monkeypatch.setattr(executor, "launch", launching)
    monkeypatch.setattr(executor, "read", reading)
    [answer] = engine.generate([[1, 2, 3]], replace(GREEDY, max_tokens=3))

    assert len(answer.token_ids) == 3
    assert events == [
        ("launch", [False]),
        ("launch", [True]),
        ("read", [False]),
        ("launch", []),
        ("launch", [True]),
        ("read", [True]),
        ("launch", []),
        ("read", [True]),
    ]


def waits_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Compute a prompt of 100 tokens; return which forward passes each step has waited for."""
    forward, ran, waited = engine.parts.executor.forward, [], []
    hidden, evaluate = forward.hidden, mx.eval

    def running(*args: Any) -> mx.array:
        ran.append(hidden(*args))
        return ran[-1]

    def evaluating(*arrays: Any) -> None:
        asked = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], list) else []
        waited.extend(n for n, one in enumerate(ran) if any(one is array for array in asked))
        evaluate(*arrays)

    engine.submit([8] * 100, GREEDY)  # chunks of 32
    seen = []
    with monkeypatch.context() as inside:
        inside.setattr(forward, "hidden", running)
        inside.setattr(mx, "eval", evaluating)
        for _ in range(3):
            before = len(waited)
            engine.step()
            seen.append(waited[before:])
    drive(engine, {})
    return seen


def test_a_round_of_chunks_waits_for_the_one_before_it(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True, in_order=True)

    assert waits_for(engine, monkeypatch) == [[], [0], [1]]


def test_a_round_that_failed_is_not_evaluated_again(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_type, ahead=True, in_order=True)
    fail_at(monkeypatch, engine.parts.executor, "launch", {1}, Broken())

    assert waits_for(engine, monkeypatch) == [[], [], [1]]


def test_what_was_launched_for_nobody_is_forgotten(model_type: str) -> None:
    engine = engine_of(model_type, ahead=True)
    submit_all(engine, [(prompt, GREEDY) for prompt in PROMPTS[:2]])
    for _ in range(4):
        engine.step()
    assert len(engine.parts.executor.unread) == 2
    engine.pause("r0")
    engine.step()
    assert len(engine.parts.executor.unread) == 2
    engine.scheduler.preempt(1)
    engine.step()
    assert len(engine.parts.executor.unread) == 1
    engine.cancel("r1")
    engine.resume("r0")
    drive(engine, {})


def test_the_last_request_leaves_nothing_behind_when_it_is_cancelled(model_type: str) -> None:
    engine = engine_of(model_type, ahead=True)
    engine.submit(PROMPTS[0], GREEDY, request_id="only")
    for _ in range(3):
        engine.step()
    assert len(engine.parts.executor.unread) == 1
    engine.cancel("only")

    [delta] = engine.step()
    assert delta.finish_reason == "cancelled"
    assert_nothing_left(engine)


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: set[int], error: BaseException
) -> list[int]:
    """Let ``owner.name`` raise, once it has run, at the given calls; return those that did."""
    original: Callable[..., Any] = getattr(owner, name)
    count, raised = 0, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        result = original(*args, **kwargs)
        if count in calls:
            raised.append(count)
            raise error
        return result

    monkeypatch.setattr(owner, name, failing)
    return raised


POINTS: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "plan ahead": lambda engine: (engine.scheduler, "plan_ahead"),
    "launch": lambda engine: (engine.parts.executor, "launch"),
    "forward": lambda engine: (engine.parts.executor.forward, "hidden"),
    "logits": lambda engine: (engine.parts.executor.forward, "logits"),
    "begin": lambda engine: (engine._output, "begin"),
    "store": lambda engine: (engine.parts.executor.store, "store"),
    "layer": lambda engine: (engine.parts.executor.store.layers[0], "store"),
    "take": lambda engine: (engine._output, "take"),
    "read": lambda engine: (engine.parts.executor, "read"),
}


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("calls", [{1}, {2}, {5, 6}, {8}], ids=str)
@pytest.mark.parametrize("point", POINTS)
def test_a_failure_anywhere_is_undone_and_the_answers_are_the_same(
    model_type: str,
    point: str,
    calls: set[int],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = replace(SAMPLED, max_tokens=8)
    reference = engine_of(model_type, ahead=False)
    expected = [answer.token_ids for answer in reference.generate(PROMPTS, params)]
    engine = engine_of(model_type, ahead=True)
    raised = fail_at(monkeypatch, *POINTS[point](engine), calls, error())
    submit_all(engine, [(prompt, params) for prompt in PROMPTS])
    answers: dict[str, Answer] = {}
    while engine.has_work:
        try:
            deltas = engine.step()
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
            continue
        for delta in deltas:
            answers.setdefault(delta.request_id, Answer(delta.request_id, 0, 0)).add(delta)

    assert raised == sorted(calls)
    assert [answers[f"r{number}"].token_ids for number in range(4)] == expected
    assert {answer.finish_reason for answer in answers.values()} == {"length"}
    assert engine.stats().scheduler.failures == len(calls)
    assert_nothing_left(engine)


def test_a_request_that_fails_only_when_it_is_launched_ahead_is_run_step_by_step(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(SAMPLED, max_tokens=8)
    reference = engine_of(model_type, ahead=False)
    expected = [answer.token_ids for answer in reference.generate(PROMPTS, params)]
    engine = engine_of(model_type, ahead=True)
    begin = engine._output.begin

    def failing(wanted: Any, logits: Any) -> Any:
        if any(
            one.window.row.seq_id == 2 and one.window.row.tokens == (UNKNOWN,) for one in wanted
        ):
            raise Broken
        return begin(wanted, logits)

    monkeypatch.setattr(engine._output, "begin", failing)
    submit_all(engine, [(prompt, params) for prompt in PROMPTS])
    found = by_request(drive(engine, {}))

    assert [said(found[f"r{number}", 0]) for number in range(4)] == expected
    assert {deltas[-1].finish_reason for deltas in found.values()} == {"length"}


def test_rounds_run_ahead_where_kernels_run_in_order_or_where_they_are_told_to() -> None:
    parts = parts_of("qwen3")
    chosen = {
        (choice, in_order): with_order(parts, choice, in_order)
        for choice in (None, True, False)
        for in_order in (False, True)
    }

    assert chosen == {
        (None, False): False,
        (None, True): True,
        (True, False): True,
        (True, True): True,
        (False, False): False,
        (False, True): False,
    }
    with pytest.raises(ValueError, match="async_scheduling must be True, False or None, not 'on'"):
        EngineOptions(async_scheduling="on")


def with_order(parts: Parts, choice: bool | None, in_order: bool) -> bool:
    executor = parts.executor
    executor.in_order = in_order
    try:
        return replace(parts, options=replace(parts.options, async_scheduling=choice)).runs_ahead
    finally:
        executor.in_order = False


def test_a_drafter_that_rests_lets_rounds_run_ahead_and_costs_no_forward_pass() -> None:
    """With one round in flight per token, and all of them launched before they are named."""
    loaded = as_loaded(tiny_model("qwen3"), "qwen3")
    options = EngineOptions(
        max_rows=2, num_blocks=40, async_scheduling=True, drafter="lookup", speculate="auto"
    )
    engine = Engine(build_parts(loaded, options))
    engine.scheduler._depth.max_depth = 0  # nothing ever pays
    launched = []
    while engine.has_work or not launched:
        if not launched:
            engine.submit(PROMPTS[0], replace(GREEDY, max_tokens=9))
        engine.step()
        launched.append(len(engine.scheduler.launched))

    assert launched == [*[1] * 8, 0]


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
