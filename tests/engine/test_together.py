"""Prompts that are decoded together, while their engine does other things as well."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from tiny_models import as_loaded, tiny_model

from engine.answer import Delta
from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.errors import EngineError, RequestError
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams
from scheduler.round import Round

PARAMS = [SamplingParams(max_tokens=count, temperature=0.0) for count in (3, 9, 14)]
PROMPTS = [[1, 2], [3, 4], [5, 6]]
OTHERS = [[7, 8], [9, 10], [11, 12]]
MOST_STEPS = 300  # many more than any of these tests takes


@pytest.fixture(scope="module")
def parts() -> Parts:
    loaded = as_loaded(tiny_model("qwen3_5"), "qwen3_5")
    return build_parts(loaded, EngineOptions(max_rows=8, num_blocks=60, exact=True, check=True))


@pytest.fixture
def engine(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine with which a test fails that would step for ever."""
    engine, steps = Engine(parts), count(1)
    plan = engine.scheduler.plan

    def bounded(now: float) -> Round | None:
        if next(steps) > MOST_STEPS:
            pytest.fail("steps go on and on")
        return plan(now)

    monkeypatch.setattr(engine.scheduler, "plan", bounded)
    yield engine
    assert not engine.has_work
    assert not engine.runs.by_sequence
    assert not engine.undelivered.inboxes


def drain(engine: Engine) -> list[Delta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    return [answer.token_ids for answer in engine.generate(prompts, PARAMS)]


def test_answers_of_two_that_take_turns_are_whole(engine: Engine) -> None:
    expected = [answers(engine, PROMPTS), answers(engine, OTHERS)]
    pairs = zip(engine.generate(PROMPTS, PARAMS), engine.generate(OTHERS, PARAMS), strict=True)
    found = [(one.token_ids, other.token_ids) for one, other in pairs]

    assert [list(side) for side in zip(*found, strict=True)] == expected


def test_what_is_read_between_answers_takes_nothing_of_them(engine: Engine) -> None:
    expected = answers(engine, PROMPTS)
    found = []
    for answer in engine.generate(PROMPTS, PARAMS):
        found.append(answer.token_ids)
        engine.embed([[*range(20)], answer.token_ids])
        assert engine.score([1, 2, 3], [answer.token_ids])[0] < 0

    assert found == expected


def test_steps_between_answers_give_out_what_others_have_gained(engine: Engine) -> None:
    expected = answers(engine, PROMPTS)
    [alone] = engine.generate([[7, 8]], PARAMS[1])
    found, said = [], []
    for answer in engine.generate(PROMPTS, PARAMS):
        found.append(answer.token_ids)
        if len(found) == 1:
            other = engine.submit([7, 8], PARAMS[1])
            said = drain(engine)

    assert found == expected
    assert {delta.request_id for delta in said} == {other}
    assert [token for delta in said for token in delta.token_ids] == alone.token_ids
    assert drain(engine) == []


def test_of_who_leaves_early_steps_tell_the_end_alone(engine: Engine) -> None:
    waiting = engine.generate(PROMPTS, PARAMS)
    next(waiting)
    engine.step()
    waiting.close()

    assert [delta.finish_reason for delta in drain(engine)] == ["cancelled", "cancelled"]


def test_a_name_is_free_again_once_its_answer_has_come(engine: Engine) -> None:
    waiting = engine.generate(PROMPTS, PARAMS)
    ended = next(waiting).request_id
    engine.submit([7, 8], PARAMS[0], request_id=ended)
    said = drain(engine)
    rest = [answer.request_id for answer in waiting]

    assert {delta.request_id for delta in said} == {ended}
    assert said[-1].finish_reason == "length"
    assert ended not in rest


def test_who_waits_for_what_is_paused_is_told_so(engine: Engine) -> None:
    waiting = engine.generate(PROMPTS, PARAMS)
    engine.pause(next(waiting).request_id)  # too late
    for request_id in engine.runs.by_request:
        engine.pause(request_id)
    with pytest.raises(EngineError, match="paused"):
        next(waiting)

    assert [delta.finish_reason for delta in drain(engine)] == ["cancelled"] * 2


def test_who_waits_for_what_is_paused_is_told_so_whatever_others_have_yet_to_read(
    engine: Engine,
) -> None:
    other = engine.submit([7, 8], PARAMS[0])
    waiting = engine.generate(PROMPTS, PARAMS)
    next(waiting)
    for request_id in engine.runs.by_request:
        engine.pause(request_id)
    with pytest.raises(EngineError, match="paused"):
        next(waiting)

    reasons = {delta.request_id: delta.finish_reason for delta in drain(engine)}
    assert reasons.pop(other) == "length"
    assert set(reasons.values()) == {"cancelled"}


def test_of_what_could_not_be_read_nobody_is_told(engine: Engine) -> None:
    other = engine.submit([1, 2], PARAMS[0])
    with pytest.raises(RequestError, match="5000 prompt tokens"):
        engine.embed([[3, 4, 5], [6] * 5000])

    assert {delta.request_id for delta in drain(engine)} == {other}


def test_a_text_in_place_of_several_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="prompts must be several, not one text"):
        list(engine.generate("The sea", replace(PARAMS[0])))
    with pytest.raises(RequestError, match="texts must be several, not one text"):
        engine.embed("The sea")
    with pytest.raises(RequestError, match="continuations must be several, not one text"):
        engine.score("The sea", " is blue")
