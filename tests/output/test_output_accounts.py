"""What a client is told adds up: texts, ids, counts, pieces, and what the prefix cache keeps."""

from dataclasses import replace
from functools import cache

import pytest
from demo_engines import Asked, Listening, ask, assert_nothing_left, parts_of
from mixed_cases import CASES, GREEDY, asked_of, prompt
from planted import pieces, plant

from engine.engine import Engine
from engine.sampling_params import SamplingParams

MANY_BYTES = r"(🎉|日本|ö|é|…){9,40}"
RUNS = [(kind, way) for kind in CASES for way in ("off", 3)]


def decoded(token_ids: list[int]) -> str:
    text: str = parts_of("off").loaded.tokenizer.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def text_by_hand(one: Asked) -> str:
    """What the ids of an answer say, up to the stop, by the tokenizer's own decoding."""
    answer, params = one.answer, one.params
    ids = answer.token_ids
    by_id = answer.finish_reason == "eos" or (
        answer.finish_reason == "stop" and ids[-1] in params.stop_token_ids
    )
    if by_id:
        return decoded(ids if params.include_stop else ids[:-1])
    text = decoded(ids)
    if answer.finish_reason != "stop":
        return text
    ends = [(text.find(stop) + len(stop), stop) for stop in params.stop if stop in text]
    end, stop = min(ends)
    assert not any(stop in decoded(ids[:-1]) for stop in params.stop)
    return text[: end if params.include_stop else end - len(stop)]


@pytest.mark.parametrize(("kind", "way"), RUNS)
def test_texts_are_what_the_ids_say_up_to_the_stop(kind: str, way: int | str) -> None:
    for one in asked_of(kind, way):
        assert one.answer.text == text_by_hand(one)


@pytest.mark.parametrize(("kind", "way"), RUNS)
def test_every_token_is_counted_once_and_has_its_logprob(kind: str, way: int | str) -> None:
    for one in asked_of(kind, way):
        answer, usage = one.answer, one.answer.usage
        assert usage.completion_tokens == len(answer.token_ids) <= one.params.max_tokens
        assert usage.accepted_tokens <= usage.drafted_tokens
        assert (usage.drafted_tokens == 0) == (way == "off")
        assert usage.cached_tokens < usage.prompt_tokens
        for delta in one.deltas:
            if one.params.logprobs is not None:
                assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
        if one.params.logprobs is None:
            assert answer.logprobs is None
            continue
        for entry in answer.logprobs:
            likeliest = [logprob for _, logprob in entry.top]
            assert entry.logprob < 0 or one.params.logprobs_mode == "processed"
            assert len(entry.top) == one.params.logprobs
            assert likeliest == sorted(likeliest, reverse=True)
        assert len({entry.logprob for entry in answer.logprobs}) > 1


@pytest.mark.parametrize(("kind", "way"), RUNS)
def test_nothing_is_sent_that_may_still_become_a_stop(kind: str, way: int | str) -> None:
    for one in asked_of(kind, way):
        sent = ""
        for delta in one.deltas[:-1]:
            sent += delta.text
            for stop in one.params.stop:
                assert not any(sent.endswith(stop[:size]) for size in range(1, len(stop)))


def test_held_text_is_said_when_no_stop_comes_of_it() -> None:
    (plain,) = ask(parts_of(3), [(prompt(23), GREEDY)])
    never = plain.answer.text[3:] + "\x00"
    (held,) = ask(parts_of(3), [(prompt(23), replace(GREEDY, stop=(never,)))])

    assert held.answer.text == plain.answer.text
    assert "".join(delta.text for delta in held.deltas[:-1]) == plain.answer.text[:3]


@pytest.mark.parametrize("way", ["off", 3, "lookup"])
def test_pieces_are_whole_characters_whatever_tokens_they_are_made_of(way: int | str) -> None:
    sampled = SamplingParams(max_tokens=40, temperature=1.0, seed=3, regex=MANY_BYTES)
    cases = [(prompt(24), replace(sampled, seed=seed)) for seed in range(3)]
    cases.append((prompt(24), replace(sampled, stop=("本ö", "🎉日", "…é"), include_stop=True)))
    for one in ask(parts_of(way), cases):
        ids = one.answer.token_ids
        assert any(piece == "" for piece in pieces(parts_of(way).loaded.tokenizer, ids))
        unfinished = one.answer.finish_reason == "length"
        for delta in one.deltas[: -1 if unfinished else None]:
            assert "\ufffd" not in delta.text
        assert one.answer.text == text_by_hand(one)


@cache
def stops_before_a_boundary() -> list[tuple[list[int], list[int], SamplingParams]]:
    """Stops whose last token leaves one place of a block empty; and what is said without them."""
    tokenizer = parts_of("off").loaded.tokenizer
    prompts = [tokenizer.encode(prompt(0))[start:] for start in range(6)]
    found = []
    for one in ask(parts_of("off"), [(ids, replace(GREEDY, max_tokens=28)) for ids in prompts]):
        ids = one.answer.token_ids
        last = 4 + (10 - len(one.prompt)) % 16
        stop = plant(tokenizer, ids, last - 1, 2)
        if stop.last == last:
            params = replace(GREEDY, stop=(stop.string,), max_tokens=28)
            found.append((one.prompt, ids, params))
    return found


def test_nothing_behind_a_stop_enters_the_prefix_index() -> None:
    parts = parts_of(4)
    listening = Listening(parts.executor)
    engine = Engine(replace(parts, executor=listening))
    num_cut = 0
    for ids, whole, params in stops_before_a_boundary():
        engine.scheduler.clear_cache()
        listening.total_picked.clear()
        (first,) = engine.generate([ids], params)
        committed = [*ids, *first.token_ids]
        assert (first.finish_reason, len(committed) % 16) == ("stop", 15)
        num_cut += listening.total_picked.total() > len(first.token_ids)
        indexed = [node.tokens for node in engine.scheduler.ledger.index.nodes.values()]
        places = range(0, len(committed) - 15, 16)
        assert sorted(indexed) == sorted(tuple(committed[at : at + 16]) for at in places)
        going_on = replace(GREEDY, max_tokens=len(whole) - len(first.token_ids))
        (second,) = engine.generate([committed], going_on)
        assert second.token_ids == whole[len(first.token_ids) :]
        assert 0 < second.usage.cached_tokens <= len(committed) // 16 * 16
    assert num_cut > 1
    assert_nothing_left(engine)


@pytest.mark.parametrize("way", ["off", 3])
def test_a_request_that_goes_on_says_exactly_what_was_not_said(way: int | str) -> None:
    tokenizer = parts_of("off").loaded.tokenizer
    (plain,) = ask(parts_of(way), [(prompt(23), replace(GREEDY, max_tokens=14))])
    ids = plain.answer.token_ids
    stop = plant(tokenizer, ids, 8, 4)
    bytes_of = SamplingParams(max_tokens=14, temperature=1.0, seed=3, regex=MANY_BYTES)
    for params in (replace(GREEDY, max_tokens=14, stop=(stop.string, ids and "\x00")), bytes_of):
        engine = Engine(parts_of("off"))
        request_id = engine.submit(prompt(23), params)
        said, text = [], ""
        states: list[tuple[list[int], str]] = []
        while engine.has_work:
            for delta in engine.step():
                said += delta.token_ids
                text += delta.text
                states.append(([*said], text))
        again = Engine(parts_of(way))
        resumed = {
            again.submit(prompt(23), params, request_id=f"{request_id} {number}", emitted=before):
            [before, sent]
            for number, (before, sent) in enumerate(states)
        }  # fmt: skip
        finishes = set()
        while again.has_work:
            for delta in again.step():
                resumed[delta.request_id][0] = resumed[delta.request_id][0] + [*delta.token_ids]
                resumed[delta.request_id][1] += delta.text
                if delta.finish_reason is not None:
                    finishes.add(delta.finish_reason)
                    assert delta.usage.completion_tokens == len(said)
        assert list(resumed.values()) == [[said, text]] * len(states)
        assert len(finishes) == 1


def test_a_cancelled_answer_says_all_that_its_tokens_say() -> None:
    engine = Engine(parts_of(3))
    (plain,) = ask(parts_of("off"), [(prompt(23), GREEDY)])
    never = plain.answer.text[2:] + "\x00"
    request_id = engine.submit(prompt(23), replace(GREEDY, stop=(never,)))
    deltas = [*engine.step(), *engine.step(), *engine.step()]
    assert "".join(delta.text for delta in deltas) == plain.answer.text[:2]
    engine.cancel(request_id)
    deltas += engine.step()

    ids = [token for delta in deltas for token in delta.token_ids]
    assert deltas[-1].finish_reason == "cancelled"
    assert "".join(delta.text for delta in deltas) == decoded(ids)
    assert deltas[-1].usage.completion_tokens == len(ids) > 4
    assert_nothing_left(engine)
