"""Whatever is asked of sampling and output, drafts change nothing of the answer, bitwise."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from demo_engines import (
    WAYS,
    Asked,
    Listening,
    Said,
    ask,
    demo_prompts,
    parts_in_order,
    parts_of,
    said,
)
from mixed_cases import CASES, asked_of, free_cases

from engine.drafting.mtp_drafter import MTPDrafter
from engine.sampling_params import SamplingParams


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("kind", CASES)
def test_drafts_change_nothing_of_what_is_answered(kind: str, way: int | str) -> None:
    found, expected = said(asked_of(kind, way)), said(asked_of(kind, "off"))

    assert found == expected
    assert sum(one.answer.usage.accepted_tokens for one in asked_of(kind, way)) > 0


@pytest.mark.parametrize(("way", "share"), [("ahead", 0.8), ("ahead by turns", 0.3)])
@pytest.mark.parametrize("kind", CASES)
def test_running_ahead_changes_nothing_of_what_is_answered(
    kind: str, way: str, share: float
) -> None:
    """Beside a grammar or a penalty nothing is launched: those cases run once with, once apart."""
    together = CASES[kind]()
    apart = [one for one in together if not needs_tokens(one[1])]
    parts = parts_of(way)
    for cases in (together, apart):
        listening = Listening(parts.executor)
        asked = ask(parts, cases, listening)
        found = said(asked)
        assert found == said(ask(parts_of("off"), cases))
    total = sum(len(one.token_ids) for one in found)
    assert listening.num_launched > share * (total - len(found))
    drafted = sum(one.answer.usage.drafted_tokens for one in asked)
    assert (drafted > 0) == (way == "ahead by turns")


def test_drafts_begun_before_their_round_is_known_are_those_begun_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy rows and others; one after the other they end and leave."""
    begun: Counter[str] = Counter()

    def counting(name: str) -> None:
        original = getattr(MTPDrafter, name)

        def count(*args: Any) -> Any:
            begun[name] += 1
            return original(*args)

        monkeypatch.setattr(MTPDrafter, name, count)

    counting("begin")
    counting("begin_after")
    ways = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.0, "top_p": 0.9, "seed": 3, "min_tokens": 4},
    ]
    cases = [
        (text, SamplingParams(max_tokens=14 + 6 * number, **ways[number % 3]))
        for number, text in enumerate(demo_prompts()[:8])
    ]
    expected = ask(parts_of(3), cases)
    begun.clear()
    found = ask(parts_in_order(3), cases)

    assert said(found) == said(expected)
    assert [drafts_of(one) for one in found] == [drafts_of(one) for one in expected]
    assert sum(accepted for _, accepted in map(drafts_of, found)) > 40
    assert begun["begin"] < 0.4 * begun["begin_after"]


def drafts_of(one: Asked) -> tuple[int, int]:
    usage = one.answer.usage
    return usage.drafted_tokens, usage.accepted_tokens


def needs_tokens(params: SamplingParams) -> bool:
    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
    return any((*penalties, params.json_schema, params.regex, params.grammar))


def test_the_mixed_batch_ends_in_every_way_and_says_something_different_each_time() -> None:
    asked = asked_of("settings", "off")

    assert {one.answer.finish_reason for one in asked} == {"length", "eos"}
    assert len({one.answer.text for one in asked}) > len(asked) - 3
    one, other = (one.answer for one in asked if one.params.n == 2)
    assert one.text != other.text


def test_planted_stops_end_inside_accepted_runs_and_begin_in_earlier_rounds() -> None:
    inside = across = 0
    for way in (2, 3, 4):
        for one in asked_of("stops", way):
            if one.answer.finish_reason == "stop" and one.params.stop:
                inside += one.num_cut > 0
                across += len(one.deltas[-1].token_ids) == 1
    assert (inside > 10, across > 3) == (True, True)


def test_stop_ids_and_end_ids_end_inside_accepted_runs() -> None:
    asked = [*asked_of("stops", 4), *asked_of("stops", 3), *asked_of("settings", 4)]
    cut = {one.answer.finish_reason for one in asked if not one.params.stop and one.num_cut}

    assert cut == {"stop", "eos"}


def test_samples_alone_are_what_they_are_in_the_batch() -> None:
    cases = free_cases()
    expected = iter(said(asked_of("settings", "off")))
    for number, (text, params) in enumerate(cases):
        batch = [next(expected) for _ in range(params.n)]
        if number % 4 == 1:
            assert said(ask(parts_of(3, prefix_cache=False), [(text, params)])) == [
                uncached(one) for one in batch
            ]


def uncached(one: Said) -> Said:
    return replace(one, counts=(*one.counts[:2], 0))
