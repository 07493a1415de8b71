"""Grammars permit what they say, are refused if they cannot work, follow drafts and commits."""

import json
import random
from pathlib import Path

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tokenizer_utils import load
from random_schemas import random_schema

import engine.demo
from engine.constraint import ConstraintCompiler, ConstraintError, Matcher
from engine.draw import DrawSource, Settings
from engine.errors import RequestError
from engine.lookahead import Lookahead
from engine.noise import RoundNoise
from engine.sampling import pick
from engine.sampling_params import SamplingParams

VOCAB = 8192 + 40  # logits may be wider than the vocabulary
EOS = (8191, 8189)


@pytest.fixture(scope="module")
def tokenizer():
    return load(Path(engine.demo.__file__).parent / "hybrid")


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return ConstraintCompiler(tokenizer, VOCAB, EOS)


def start(compiler, **constraint) -> Matcher:
    return compiler.compile(SamplingParams(**constraint))


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def shown(tokenizer, matcher: Matcher) -> set[str]:
    return {tokenizer.decode([token]) for token in np.flatnonzero(matcher.mask())}


def test_what_a_random_model_ends_parses_and_satisfies_its_schema(tokenizer, compiler) -> None:
    generator, noise = random.Random(1), np.random.default_rng(1)
    num_ended = 0
    for _ in range(200):
        schema = random_schema(generator)
        matcher = start(compiler, json_schema=json.dumps(schema))
        tokens: list[int] = []
        while not matcher.ended and len(tokens) < 200:
            scores = np.where(matcher.mask(), noise.random(VOCAB), -np.inf)
            tokens.append(int(scores.argmax()))
            matcher.advance(tokens[-1:])
        if not matcher.ended:
            assert start(compiler, json_schema=json.dumps(schema)).try_advance(tokens) == 200
            continue
        num_ended += 1
        assert not matcher.mask().any()
        value = json.loads(tokenizer.decode(tokens, skip_special_tokens=True))
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    assert num_ended > 190


def test_windows_of_any_depth_say_what_one_token_at_a_time_says(tokenizer, compiler) -> None:
    """Draft and target have logits of their own and share the noise."""
    random_logits = np.random.default_rng(0)
    target = random_logits.normal(size=(120, VOCAB)).astype(np.float32) * 2
    drafter = target + random_logits.normal(size=target.shape).astype(np.float32)
    for number in range(12):
        schema = json.dumps(random_schema(random.Random(100 + number)))
        params = SamplingParams(temperature=0.7, seed=number, json_schema=schema)
        outputs = [speculate(compiler, params, target, drafter, depth) for depth in (0, 1, 2, 4)]
        assert all(tokens == outputs[0][0] for tokens, _ in outputs)
        if len(outputs[0][0]) > 12:
            assert outputs[3][1] < outputs[0][1]  # some drafts were accepted


def speculate(compiler, params, target, drafter, depth: int) -> tuple[list[int], int]:
    matcher = compiler.compile(params)
    source = DrawSource(Settings.of(params, VOCAB, EOS), params.seed, 0, ())
    noise, tokens, num_rounds = RoundNoise(VOCAB), [], 0
    while not matcher.ended and len(tokens) < 100:
        noise.clear()
        num_rounds += 1
        drafts: list[int] = []
        for _ in range(depth):
            if matcher.ended:
                break
            draw = source.draw(drafts, mask=matcher.mask())
            logits = mx.array(drafter[len(tokens) + len(drafts)][None])
            drafts += pick([draw], logits, noise, logprobs=False).token_ids()
            assert matcher.try_advance(drafts[-1:]) == 1
        matcher.rollback(len(drafts))
        masks = Lookahead(matcher).masks(drafts)
        draws = [source.draw(drafts[:i], mask=mask) for i, mask in enumerate(masks)]
        window = mx.array(target[len(tokens) : len(tokens) + len(drafts) + 1])
        picked = pick(draws, window, noise).token_ids()
        num_accepted = 0
        while num_accepted < len(drafts) and drafts[num_accepted] == picked[num_accepted]:
            num_accepted += 1
        kept = picked[: num_accepted + 1]
        if any(token in EOS for token in kept):
            kept = kept[: next(i for i, token in enumerate(kept) if token in EOS) + 1]
        matcher.advance(kept)
        source.commit(kept)
        tokens += kept
    return tokens, num_rounds


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"json_schema": "{bad"}, "json_schema cannot constrain the output: it is not JSON"),
        ({"json_schema": "[1]"}, "neither an object nor true or false"),
        ({"json_schema": '{"type": "intege"}'}, "Invalid type: intege"),
        ({"json_schema": '{"type": "integer", "minimum": 5, "maximum": 3}'}, r"minimum \(5\) is"),
        ({"json_schema": "false"}, "it is false: no value"),
        ({"json_schema": '{"not": {}}'}, "Unimplemented keys"),
        ({"json_schema": '{"$ref": "#/nowhere"}'}, "does not exist"),
        ({"json_schema": "[" * 100_000}, "cannot constrain the output"),
        ({"regex": "("}, "regex cannot constrain the output: .*unclosed group"),
        ({"regex": r"a(?=b)"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "nothing but perhaps an empty"),
        ({"grammar": "start: x"}, 'grammar cannot constrain the output: .*unknown name: "x"'),
        ({"grammar": "what?"}, "grammar cannot constrain the output"),
    ],
)
def test_a_constraint_that_cannot_work_is_refused_with_the_reason(
    compiler, constraint, reason
) -> None:
    with pytest.raises(RequestError, match=f"(?s){reason}"):
        start(compiler, **constraint)


LIST = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}


def test_a_schema_that_refers_to_itself_must_be_able_to_end(compiler) -> None:
    endless = [
        LIST | {"required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"anyOf": [{"$ref": "#/$defs/b"}]},
                "b": {"allOf": [{"$ref": "#/$defs/a"}]},
            },
        },
    ]
    for schema in endless:
        with pytest.raises(RequestError, match="without end"):
            start(compiler, json_schema=json.dumps(schema))
    tree = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    ending = [
        LIST,
        {"type": "array", "items": {"$ref": "#"}},
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"left": tree, "right": tree},
                    "required": ["left", "right"],
                }
            },
        },
    ]
    for schema in ending:
        assert start(compiler, json_schema=json.dumps(schema)) is not None


def test_parameters_that_contradict_a_grammar_are_refused(compiler) -> None:
    with pytest.raises(RequestError, match="ignore_eos is True: with regex it must be False"):
        start(compiler, regex="a", ignore_eos=True)
    with pytest.raises(RequestError, match="min_tokens is 3: with json_schema"):
        start(compiler, json_schema="{}", min_tokens=3)
    assert start(compiler, min_tokens=3, ignore_eos=True) is None


def test_the_end_is_allowed_exactly_where_the_grammar_is_satisfied(tokenizer, compiler) -> None:
    matcher = start(compiler, regex="(ab)?")
    assert shown(tokenizer, matcher) == {"a", "ab", "<|im_end|>", "<|endoftext|>"}
    matcher.advance(ids(tokenizer, "a"))
    assert shown(tokenizer, matcher) == {"b"}
    assert matcher.try_advance(EOS[:1]) == 0
    matcher.advance(ids(tokenizer, "b"))
    assert (shown(tokenizer, matcher), matcher.ended) == ({"<|im_end|>", "<|endoftext|>"}, False)


def test_an_ended_matcher_is_never_advanced_and_may_be_rolled_back(tokenizer, compiler) -> None:
    matcher = start(compiler, regex="a*")
    matcher.advance([*ids(tokenizer, "a"), EOS[1]])
    assert (matcher.ended, matcher.satisfied, matcher.mask().any()) == (True, True, False)
    assert matcher.try_advance(EOS) == 0
    with pytest.raises(ConstraintError, match="has ended after 2 tokens"):
        matcher.advance(EOS[:1])
    matcher.rollback(1)
    assert (matcher.ended, "a" in shown(tokenizer, matcher)) == (False, True)
    matcher.rollback(1)
    with pytest.raises(ValueError, match="1 tokens to take back of 0"):
        matcher.rollback(1)


def test_a_refused_commit_changes_nothing(tokenizer, compiler) -> None:
    matcher = start(compiler, regex="a[bc]d")
    with pytest.raises(ConstraintError, match=r"refuses token .* after 0 tokens"):
        matcher.advance(ids(tokenizer, "a") + ids(tokenizer, "x"))
    assert "a" in shown(tokenizer, matcher)


def test_masks_of_a_window_follow_its_drafts_and_leave_the_matcher_where_it_was(
    tokenizer, compiler
) -> None:
    matcher = start(compiler, regex="[ab]c[de]")
    first = matcher.mask()
    window = ids(tokenizer, "a") + ids(tokenizer, "c") + ids(tokenizer, "x")
    masks = Lookahead(matcher).masks(window)
    assert [
        None if mask is None else sorted(tokenizer.decode([t]) for t in np.flatnonzero(mask))
        for mask in masks[1:]
    ] == [["c", "ce"], ["d", "e"], None]
    assert np.array_equal(matcher.mask(), first)
    whole = [*ids(tokenizer, "a"), *ids(tokenizer, "c"), *ids(tokenizer, "d"), EOS[0], 5]
    assert [mask is None for mask in Lookahead(matcher).masks(whole)] == [False] * 4 + [True] * 2
    assert (matcher.ended, np.array_equal(matcher.mask(), first)) == (False, True)


def test_masks_made_piece_by_piece_or_for_other_drafts_are_the_same(tokenizer, compiler) -> None:
    matcher = start(compiler, regex="(ab|cd){3}!")
    window = [ids(tokenizer, letter)[0] for letter in "abcdx!"]
    lookahead = Lookahead(matcher)
    for size in (0, 1, 2, 5, 3, 6):
        expected = Lookahead(matcher).masks(window[:size])
        assert shape(lookahead.masks(window[:size])) == shape(expected)
    other = window[2:]
    assert shape(lookahead.masks(other)) == shape(Lookahead(matcher).masks(other))
    assert matcher.num_tokens == 0


def shape(masks) -> list[list[int] | None]:
    return [None if mask is None else np.flatnonzero(mask).tolist() for mask in masks]


def test_a_draft_into_a_dead_end_is_remembered_and_leaves_the_matcher_whole(
    tokenizer, compiler
) -> None:
    matcher = start(compiler, grammar='start: "go" ("a" X | "b")\nX: /[^\\s\\S]/')
    matcher.advance(ids(tokenizer, "go"))
    before = matcher.num_tokens
    lookahead = Lookahead(matcher)
    masks = lookahead.masks(ids(tokenizer, "a") + ids(tokenizer, "b"))
    assert [mask is None for mask in masks] == [False, True, True]
    assert lookahead.failure == (1, "the grammar cannot be matched: NoExtensionBias")
    assert matcher.num_tokens == before
    matcher.advance([*ids(tokenizer, "b"), EOS[0]])
    assert matcher.ended
    again = Lookahead(start(compiler, regex="ab"))
    assert again.masks(ids(tokenizer, "x")) is not None
    assert again.failure is None


def test_a_fork_goes_its_own_way_and_equal_constraints_share_nothing(tokenizer, compiler) -> None:
    matcher = start(compiler, regex="a[bc]")
    matcher.advance(ids(tokenizer, "a"))
    fork, other = matcher.fork(), start(compiler, regex="a[bc]")
    fork.advance([*ids(tokenizer, "b"), EOS[0]])
    assert shown(tokenizer, matcher) == {"b", "c"}
    assert "a" in shown(tokenizer, other)
    matcher.rollback(1)
    assert fork.ended


def test_a_lark_grammar_constrains(tokenizer, compiler) -> None:
    matcher = start(compiler, grammar='start: "yes" | "no" tail\ntail: /[!]{1,2}/')
    matcher.advance(ids(tokenizer, "no"))
    assert shown(tokenizer, matcher) == {"!", "!!"} & {
        tokenizer.decode([token]) for token in range(8189)
    }


def test_json_may_be_compact_spaced_or_indented_but_blanks_never_go_on(tokenizer, compiler) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    }
    value = {"a": [1, 2]}
    for text in (
        json.dumps(value),
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4),
    ):
        start(compiler, json_schema=json.dumps(schema)).advance([*ids(tokenizer, text), EOS[0]])
    for blank in " \n":
        matcher = start(compiler, json_schema=json.dumps(schema))
        matcher.advance(ids(tokenizer, "{"))
        assert matcher.try_advance(ids(tokenizer, blank) * 60) <= 1


def test_a_grammar_that_turns_out_to_lead_nowhere_is_named_as_the_cause(
    tokenizer, compiler
) -> None:
    matcher = start(compiler, grammar='start: "a" X\nX: /[^\\s\\S]/')
    assert matcher.try_advance(ids(tokenizer, "a")) == 1
    with pytest.raises(ConstraintError, match=r"the grammar cannot be matched: NoExtensionBias$"):
        matcher.mask()


def test_the_compiler_keeps_a_bounded_number_of_constraints(compiler) -> None:
    for number in range(70):
        start(compiler, regex=f"a{{{number + 1}}}")
    assert len(compiler._kept) == 64
