"""The engine as its users see it: submit, step, generate, cancel, pause, errors, counts."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiny_models import as_loaded, tiny_model

from engine.answer import Delta, Usage
from engine.build import Parts, build, build_parts
from engine.engine import Engine
from engine.errors import RequestError
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def draft_parts() -> Parts:
    return build("demo-draft", max_rows=4, num_blocks=60, max_context=256, check=True)


@pytest.fixture(scope="module")
def tiny_parts() -> Parts:
    loaded = as_loaded(tiny_model("qwen3_5"), "qwen3_5")
    return build_parts(loaded, EngineOptions(max_rows=4, num_blocks=60, exact=True, check=True))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tiny_parts: Parts, clock: Clock) -> Iterator[Engine]:
    """An engine of a tiny hybrid that must end without anything left behind."""
    engine = Engine(tiny_parts, clock)
    yield engine
    for request_id in list(engine.runs.by_request):
        engine.cancel(request_id)
    drain(engine)
    stats = engine.stats().scheduler
    assert not engine.runs.by_sequence
    assert not engine.runs.by_request
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert stats.free_slots + stats.cached_slots == stats.total_slots


def drain(engine: Engine) -> list[Delta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


def tokens_of(deltas: list[Delta], request_id: str, index: int = 0) -> list[int]:
    mine = [delta for delta in deltas if (delta.request_id, delta.index) == (request_id, index)]
    return [token for delta in mine for token in delta.token_ids]


def test_the_example_of_the_readme_works(draft_parts: Parts) -> None:
    engine = Engine(draft_parts)
    params = SamplingParams(max_tokens=8, temperature=0.0)
    answers = list(engine.generate(["The sea", "Once"], params))

    assert [len(answer.token_ids) for answer in answers] == [8, 8]
    for answer in answers:
        assert answer.text == engine.tokenizer.decode(answer.token_ids)
        assert answer.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
    request_id = engine.submit("The sea", params)
    assert tokens_of(engine.step(), request_id) == answers[0].token_ids[:1]
    engine.cancel(request_id)
    assert [delta.finish_reason for delta in drain(engine)] == ["cancelled"]


def test_chat_messages_go_through_the_models_template(draft_parts: Parts) -> None:
    engine = Engine(draft_parts)
    messages = [{"role": "user", "content": "Say hello."}]
    prompt = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True)

    answers = list(engine.generate([messages, prompt], GREEDY))

    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].usage == answers[1].usage
    assert answers[0].usage is not None
    assert answers[0].usage.prompt_tokens == len(prompt)


def test_an_answer_ends_at_the_models_end_of_sequence(draft_parts: Parts) -> None:
    engine = Engine(draft_parts)
    params = SamplingParams(max_tokens=100, logit_bias={8191: 100.0})

    (answer,) = engine.generate(["Hello"], params)

    assert (answer.finish_reason, answer.token_ids, answer.text) == ("eos", [8191], "")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "non-empty list of token ids"),
        ([5, 96], "prompt holds 96: token ids are 0 to 95"),
        ([5, True], "prompt holds True"),
        ([5, "x"], "prompt holds 'x'"),
        (7, "a prompt must be a text"),
        (b"bytes", "a prompt must be a text"),
        ([{"role": "user"}], "message 0 must have role and content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "images and audio are not"),
        ([1] * 600, "context holds 512"),
    ],
)
def test_a_bad_prompt_is_refused_in_words_and_changes_nothing(
    engine: Engine, prompt: object, message: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        engine.submit(prompt, GREEDY)  # type: ignore[arg-type]

    assert not engine.has_work


def test_a_request_that_memory_cannot_hold_is_refused_with_the_numbers(tiny_parts: Parts) -> None:
    config = replace(tiny_parts.scheduler_config, num_blocks=3)
    engine = Engine(replace(tiny_parts, scheduler_config=config))

    with pytest.raises(RequestError, match=r"need 3 blocks of 16, but the memory holds 2 \(32"):
        engine.submit([1] * 30, SamplingParams(max_tokens=4))
    assert not engine.has_work
    assert engine.submit([1] * 30, SamplingParams(max_tokens=3))


def test_a_request_id_is_refused_while_it_runs_and_free_once_it_has_ended(engine: Engine) -> None:
    engine.submit([1, 2], GREEDY, request_id="mine")
    with pytest.raises(RequestError, match="request_id 'mine' is already running"):
        engine.submit([3], GREEDY, request_id="mine")
    first = tokens_of(drain(engine), "mine")
    engine.submit([1, 2], GREEDY, request_id="mine")

    assert tokens_of(drain(engine), "mine") == first


def test_ids_made_by_the_engine_avoid_those_of_its_users(engine: Engine) -> None:
    engine.submit([1], GREEDY, request_id="request-1")

    assert engine.submit([1], GREEDY) == "request-2"


def test_params_of_another_type_are_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="params must be SamplingParams, not dict"):
        engine.submit([1], {"max_tokens": 3})  # type: ignore[arg-type]


def test_an_engine_without_requests_has_nothing_to_do(engine: Engine) -> None:
    assert not engine.has_work
    assert engine.step() == []
    assert list(engine.generate([])) == []


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_prompts_at_the_edges_of_blocks_give_the_first_token_alone(
    engine: Engine, length: int
) -> None:
    prompt = list(range(1, 1 + length))
    (one,) = engine.generate([prompt], replace(GREEDY, max_tokens=1))
    (six,) = engine.generate([prompt], GREEDY)

    assert one.token_ids == six.token_ids[:1]
    assert (one.finish_reason, len(one.token_ids)) == ("length", 1)


def test_seeds_are_reported_and_bring_the_same_answer_back(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.5)
    request_id = engine.submit([1, 2, 3], params)
    seed = engine.seed_of(request_id)
    first = tokens_of(drain(engine), request_id)
    again = engine.submit([1, 2, 3], replace(params, seed=seed))
    other = engine.submit([1, 2, 3], params)
    assert engine.seed_of(again) == seed != engine.seed_of(other)
    deltas = drain(engine)

    assert tokens_of(deltas, again) == first != tokens_of(deltas, other)
    with pytest.raises(KeyError):
        engine.seed_of(request_id)


def test_the_seed_is_known_while_any_sample_runs(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3, n=2, stop_token_ids=())
    request_id = engine.submit([1, 2], params)
    engine.step()
    engine.scheduler.cancel(engine.runs.by_request[request_id][1])
    engine.step()

    assert engine.seed_of(request_id) == 3


def test_samples_come_in_order_and_differ_but_for_the_seed_stay_the_same(engine: Engine) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.5, seed=5, n=3)
    answers = list(engine.generate([[1, 2, 3], [4, 5]], params))
    alone = list(engine.generate([[4, 5]], params))

    assert [answer.index for answer in answers] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(answer.token_ids) for answer in answers}) == 6
    assert [a.token_ids for a in alone] == [a.token_ids for a in answers[3:]]


def test_answers_come_in_the_order_of_the_prompts_whichever_ends_first(engine: Engine) -> None:
    params = [replace(GREEDY, max_tokens=count) for count in (20, 2, 9, 1, 5, 3)]
    prompts = [[number + 1] * 3 for number in range(6)]

    answers = list(engine.generate(prompts, params))

    assert [len(answer.token_ids) for answer in answers] == [20, 2, 9, 1, 5, 3]
    with pytest.raises(RequestError, match="6 params for 2 prompts"):
        list(engine.generate(prompts[:2], params))


def test_a_bad_prompt_among_good_ones_leaves_nothing_running(engine: Engine) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        list(engine.generate([[1, 2], ""], GREEDY))

    assert [delta.finish_reason for delta in drain(engine)] == ["cancelled"]


def test_leaving_a_generator_early_cancels_what_is_not_done(engine: Engine) -> None:
    answers = engine.generate([[1], [2], [3]], [replace(GREEDY, max_tokens=n) for n in (2, 50, 60)])
    next(answers)
    answers.close()

    assert [delta.finish_reason for delta in drain(engine)] == ["cancelled", "cancelled"]


def test_generating_keeps_the_deltas_of_requests_that_are_not_its_own(engine: Engine) -> None:
    alone = engine.submit([7, 8], GREEDY)
    expected = tokens_of(drain(engine), alone)
    other = engine.submit([7, 8], GREEDY)
    list(engine.generate([[1, 2]], replace(GREEDY, max_tokens=9)))

    assert engine.has_work
    assert tokens_of(drain(engine), other) == expected


def test_usage_counts_tokens_and_says_what_the_cache_spared(engine: Engine) -> None:
    prompt = [9, 8, 7, 6] * 9
    (first,) = engine.generate([prompt], GREEDY)
    (second,) = engine.generate([prompt], GREEDY)

    assert first.usage == Usage(prompt_tokens=36, completion_tokens=6)
    assert second.usage == Usage(prompt_tokens=36, completion_tokens=6, cached_tokens=32)
    assert first.token_ids == second.token_ids


def test_a_deadline_ends_a_request_and_keeps_what_it_said(engine: Engine, clock: Clock) -> None:
    late = engine.submit([1, 2], replace(GREEDY, max_tokens=400, deadline=5.0))
    other = engine.submit([3, 4], GREEDY)
    said = [engine.step() for _ in range(3)]
    clock.now += 6
    deltas = drain(engine)

    ended = [delta for delta in deltas if delta.request_id == late]
    assert [delta.finish_reason for delta in ended] == ["deadline"]
    assert ended[0].usage == Usage(prompt_tokens=2, completion_tokens=3)
    assert len(tokens_of([delta for step in said for delta in step], late)) == 3
    assert [d.finish_reason for d in deltas if d.request_id == other][-1] == "length"


def test_a_paused_request_waits_and_goes_on_where_it_stood(engine: Engine) -> None:
    plain = engine.submit([5, 6], replace(GREEDY, max_tokens=10))
    expected = tokens_of(drain(engine), plain)
    paused = engine.submit([5, 6], replace(GREEDY, max_tokens=10))
    said = tokens_of([*engine.step(), *engine.step()], paused)
    engine.pause(paused)
    assert drain(engine) == []
    assert not engine.has_work
    engine.resume(paused)

    assert said + tokens_of(drain(engine), paused) == expected


def test_a_request_goes_on_from_what_an_earlier_run_said(engine: Engine) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=11)
    whole = engine.submit([5, 6], params)
    expected = tokens_of(drain(engine), whole)
    again = engine.submit([5, 6], params, emitted=expected[:4])
    deltas = drain(engine)

    assert tokens_of(deltas, again) == expected[4:]
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 10


def test_unknown_ids_are_ignored_where_the_race_is_not_the_callers_fault(engine: Engine) -> None:
    engine.cancel("nobody")
    engine.pause("nobody")
    engine.resume("nobody")


def test_statistics_count_rows_and_tokens(engine: Engine) -> None:
    list(engine.generate([[1, 2, 3], [4, 5]], replace(GREEDY, max_tokens=5)))
    stats = engine.stats()

    assert (stats.scheduler.prompt_tokens, stats.scheduler.generated_tokens) == (5, 10)
    assert (stats.num_steps, stats.mean_batch_width) == (5, 2.0)
    assert stats.peak_memory_bytes > 0


def test_what_was_loaded_is_described_in_plain_values(engine: Engine) -> None:
    described = engine.describe()

    assert described["model_type"] == "qwen3_5"
    assert described["exact"] is True
    assert described["max_rows"] == 4
    assert [kind.split(",")[0] for kind in described["layers"]] == [
        "gated delta rule by mlx-lm's loop",
        "paged attention",
    ] * 2
