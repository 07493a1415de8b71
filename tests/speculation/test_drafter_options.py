"""Which drafter an engine gets, and what is said where it cannot have the one asked for."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.build import build
from engine.drafting.ngram_search import MOST_IDS
from engine.drafting.plan import check_vocabulary, plan_lookup
from engine.errors import ModelError
from engine.loading import load
from engine.options import EngineOptions

SIZES: dict[str, Any] = {"num_blocks": 20, "max_rows": 2, "max_context": 128}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"drafter": "magic"}, "drafter must be 'mtp', 'peer', 'lookup' or None, not 'magic'"),
        ({"drafter": "peer"}, "drafter 'peer' needs draft_model"),
        (
            {"drafter": "lookup", "draft_model": "x"},
            "draft_model is given, but drafter is 'lookup'",
        ),
        (
            {"drafter": "peer", "draft_model": "x", "mtp": "y"},
            "mtp is given, but drafter is 'peer'",
        ),
        ({"acceptance": "greedy"}, "acceptance must be 'coupled' or 'rejection', not 'greedy'"),
        ({"speculate": 9}, "speculate must be"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EngineOptions(**choices)


def test_without_a_choice_the_mtp_head_drafts_where_there_is_one() -> None:
    parts = build("demo", speculate=2, draft_model="demo-draft", **SIZES)
    assert parts.describe()["drafter"] == "mtp"


def test_without_a_head_the_draft_model_drafts() -> None:
    parts = build("demo-draft", speculate=2, draft_model="demo-draft", **SIZES)
    assert parts.describe()["drafter"] == "peer"


def test_without_any_drafter_decoding_is_plain_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="octavo"):
        parts = build("demo-draft", speculate=2, **SIZES)

    assert parts.describe()["drafter"] is None
    assert "no MTP head and no draft model is named" in caplog.text


def test_a_head_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with pytest.raises(ModelError, match="drafter is 'mtp', but demo-draft has no MTP head"):
        build("demo-draft", speculate=2, drafter="mtp", **SIZES)


def test_a_draft_model_of_another_vocabulary_is_refused_with_an_id_that_differs(
    copy_model: Callable[[str], Path],
) -> None:
    folder = copy_model("demo-draft")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number in (300, 301)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    with pytest.raises(ModelError, match="cannot draft for demo, for its vocabulary is another: 2"):
        check_vocabulary(load(str(folder)), load("demo"))


def test_a_vocabulary_that_cannot_be_searched_is_refused() -> None:
    model = load("demo-draft")
    assert plan_lookup(replace(model, vocab_size=MOST_IDS)).name == "lookup"
    with pytest.raises(ModelError, match="drafter is 'lookup', which knows 1114112 token ids"):
        plan_lookup(replace(model, vocab_size=MOST_IDS + 1))
