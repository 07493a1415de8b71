"""An exception anywhere in a round fails nobody who has nothing to do with it; nothing leaks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny_models import as_loaded, tiny_model

from engine.answer import Delta
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams

PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=4, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4] * 20, [5, 6], [7] * 40]


class Broken(Exception):
    """What the tests inject."""


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5", "jamba"])
def parts(request: pytest.FixtureRequest) -> Parts:
    loaded = as_loaded(tiny_model(request.param), request.param)
    options = EngineOptions(max_rows=4, num_blocks=40, check=True, prompt_tokens_per_round=32)
    return build_parts(loaded, options)


@pytest.fixture
def engine(parts: Parts) -> Iterator[Engine]:
    engine = Engine(parts)
    yield engine
    stats = engine.stats().scheduler
    assert not engine.has_work
    assert not engine.runs.by_sequence
    assert not engine.runs.by_request
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots


def answers_of(engine: Engine) -> list[list[int]]:
    return [answer.token_ids for answer in Engine(engine.parts).generate(PROMPTS, PARAMS)]


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: set[int], error: BaseException
) -> None:
    """Let ``owner.name`` raise, once it has run, at the given calls."""
    original: Callable[..., Any] = getattr(owner, name)
    count = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        result = original(*args, **kwargs)
        if count in calls:
            raise error
        return result

    monkeypatch.setattr(owner, name, failing)


def collect(
    engine: Engine, said: dict[str, list[int]], texts: dict[str, str] | None = None
) -> list[Delta]:
    """Run to the end; add tokens to ``said``, text to ``texts``, return the last deltas."""
    ended = []
    texts = dict.fromkeys(said, "") if texts is None else texts
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id] += delta.token_ids
            texts[delta.request_id] += delta.text
            if delta.finish_reason is not None:
                ended.append(delta)
    return ended


POINTS: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "copy": lambda engine: (engine.parts.executor.store, "copy"),
    "open": lambda engine: (engine.parts.executor.store, "open"),
    "forward": lambda engine: (engine.parts.executor.forward, "hidden"),
    "logits": lambda engine: (engine.parts.executor.forward, "logits"),
    "pick": lambda engine: (engine._output, "pick"),
    "store": lambda engine: (engine.parts.executor.store, "store"),
    "layer": lambda engine: (engine.parts.executor.store.layers[0], "store"),
    "text": lambda engine: (engine.runs.by_sequence[2].text, "feed"),
    "count": lambda engine: (engine._counter, "count"),
    "plan": lambda engine: (engine.scheduler, "plan"),
}
ELSEWHERE = ("text", "plan")  # failing there concerns one alone, or whoever steps
ROUND = [point for point in POINTS if point not in ELSEWHERE]


@pytest.mark.parametrize("calls", [{1}, {3, 4}], ids=str)
@pytest.mark.parametrize("point", ROUND)
def test_a_round_that_raises_is_done_again_with_the_same_result(
    engine: Engine, point: str, calls: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_of(engine)
    fail_at(monkeypatch, *POINTS[point](engine), calls, Broken())
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    ended = collect(engine, said)

    assert list(said.values()) == expected
    assert {delta.finish_reason for delta in ended} == {"length"}
    assert engine.stats().scheduler.failures > 0


@pytest.mark.parametrize("point", ["forward", "pick", "store"])
def test_a_request_that_fails_every_round_ends_and_the_others_go_on(
    engine: Engine, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_of(engine)
    executor = engine.parts.executor
    run = executor._run_batch

    def failing(batch: Any, *args: Any) -> Any:
        if any(window.row.seq_id == 2 for window in batch.windows):
            owner, name = POINTS[point](engine)
            with monkeypatch.context() as inside:
                fail_at(inside, owner, name, {1}, Broken())
                return run(batch, engine._output.pick)
        return run(batch, *args)

    monkeypatch.setattr(executor, "_run_batch", failing)
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    ended = collect(engine, said)

    reasons = {delta.request_id: delta.finish_reason for delta in ended}
    assert [reasons[one] for one in said] == ["length", "error", "length", "length"]
    errors = [delta.error for delta in ended if delta.finish_reason == "error"]
    assert errors == ["the request failed; the log of the engine says why"]
    del expected[1]
    assert [tokens for tokens in said.values() if tokens] == expected


def test_what_waits_for_a_step_outlives_one_that_is_interrupted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_of(engine)
    said: dict[str, list[int]] = {engine.submit(PROMPTS[0], PARAMS): []}
    list(engine.generate(PROMPTS[1:2], PARAMS))  # what the other gains meanwhile waits
    said[engine.submit(PROMPTS[2], PARAMS)] = []
    fail_at(monkeypatch, engine.parts.executor.forward, "hidden", {1}, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    collect(engine, said)

    assert list(said.values()) == [expected[0], expected[2]]


@pytest.mark.parametrize("where", ["text", "source"])
def test_what_fails_for_one_answer_ends_that_one_alone(
    engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_of(engine)
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    broken = engine.runs.by_sequence[engine.runs.by_request["request-2"][0]]
    name = {"text": "feed", "source": "commit"}[where]
    fail_at(monkeypatch, getattr(broken, where), name, {3}, Broken())
    ended = collect(engine, said)

    reasons = {delta.request_id: (delta.finish_reason, delta.usage is not None) for delta in ended}
    assert [reasons[request_id] for request_id in said] == [
        ("length", True),
        ("error", True),
        ("length", True),
        ("length", True),
    ]
    assert said["request-2"] == expected[1][:2]
    del said["request-2"], expected[1]
    assert list(said.values()) == expected


@pytest.mark.parametrize("point", ["plan", "forward", "pick", "store", "text", "count"])
def test_an_interrupted_step_raises_and_the_engine_goes_on(
    engine: Engine, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [(one.token_ids, one.text) for one in Engine(engine.parts).generate(PROMPTS, PARAMS)]
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    fail_at(monkeypatch, *POINTS[point](engine), {3}, KeyboardInterrupt())
    texts = dict.fromkeys(said, "")
    with pytest.raises(KeyboardInterrupt):
        collect(engine, said, texts)
    ended = collect(engine, said, texts)

    assert list(zip(said.values(), texts.values(), strict=True)) == expected
    assert {delta.finish_reason for delta in ended} == {"length"}


def test_who_is_cancelled_after_a_step_was_interrupted_has_said_what_its_tokens_say(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    texts = dict.fromkeys(said, "")
    fail_at(monkeypatch, engine._counter, "count", {4}, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        collect(engine, said, texts)
    for request_id in said:
        engine.cancel(request_id)
    ended = collect(engine, said, texts)

    assert {delta.finish_reason for delta in ended} == {"cancelled"}
    assert any(said.values())
    assert texts == {one: engine.tokenizer.decode(tokens) for one, tokens in said.items()}


def test_an_interruption_while_an_answer_is_told_of_ends_that_one_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_of(engine)
    said: dict[str, list[int]] = {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    broken = engine.runs.by_sequence[2]
    fail_at(monkeypatch, broken.source, "commit", {3}, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        collect(engine, said)
    ended = collect(engine, said)

    reasons = {delta.request_id: delta.finish_reason for delta in ended}
    assert [reasons[request_id] for request_id in said] == ["length", "error", "length", "length"]
    assert said["request-2"] == expected[1][:2]
    del said["request-2"], expected[1]
    assert list(said.values()) == expected
