"""In exact mode a request says the same with and without drafts, whoever drafts and however many.

The suite covers every pair of sampling, depth, drafter and batch size; the soak all of them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import pytest
from oracle import Oracle

from engine.engine import Engine
from engine.loading import EMBEDDED
from engine.sampling_params import SamplingParams

MAX_TOKENS = 10
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "0.8": {"temperature": 0.8},
    "1.0": {"temperature": 1.0},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
}
PROMPTS = (
    "Once upon a time there was",
    "The old man said that",
    "one two three four one two three four one two",
    "1, 2, 3, 4, 5, 1, 2, 3, 4,",
    "It was a dark night, and",
    "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n",
    "She looked at him, and he looked at her, and she looked",
    "In the year 1796 the",
)


class Case(NamedTuple):
    sampling: str
    depth: int
    drafter: str
    batch: int


FACTORS = (tuple(SAMPLINGS), tuple(range(9)), ("mtp", "peer", "lookup"), (1, 8))


def in_batches() -> list[list[Case]]:
    """Six batches of 8 rows, each row of a depth and sampling of its own; then rows alone."""
    samplings, depths, drafters, _ = FACTORS
    batches = []
    for shift, drafter in enumerate(drafters):
        rows = [
            Case(samplings[(depths[n % 9] + shift + 2 * (n // 9)) % 4], n % 9, drafter, 8)
            for n in range(16)
        ]
        batches += [rows[:8], rows[8:]]
    alone = [[Case(samplings[(d + 3) % 4], d, drafters[d % 3], 1)] for d in depths]
    return batches + alone


def test_the_batches_cover_every_pair() -> None:
    covered = {
        pair for batch in in_batches() for row in batch for pair in combinations(enumerate(row), 2)
    }
    wanted = {pair for row in product(*FACTORS) for pair in combinations(enumerate(row), 2)}

    assert wanted <= covered


def params(sampling: str) -> SamplingParams:
    return SamplingParams(max_tokens=MAX_TOKENS, seed=5, ignore_eos=True, **SAMPLINGS[sampling])


@pytest.fixture(scope="module")
def plainly(demo_engine: Callable[..., Engine]) -> Callable[[str], list[list[int]]]:
    """Return a function from a sampling to what each prompt gets without drafts."""

    @cache
    def say(sampling: str) -> list[list[int]]:
        answers = demo_engine("plain").generate(PROMPTS, params(sampling))
        return [answer.token_ids for answer in answers]

    return say


def run(engine: Callable[..., Engine], rows: Sequence[Case]) -> list[list[int]]:
    depths = {str(place): row.depth for place, row in enumerate(rows)}
    running = engine(rows[0].drafter, depths)
    for place, row in enumerate(rows):
        running.submit(PROMPTS[place], params(row.sampling), request_id=str(place))
    said: dict[str, list[int]] = {name: [] for name in depths}
    while running.has_work:
        for delta in running.step():
            said[delta.request_id] += delta.token_ids
    return [said[str(place)] for place in range(len(rows))]


def compare(
    engine: Callable[..., Engine], plainly: Callable[[str], list[list[int]]], rows: Sequence[Case]
) -> None:
    expected = [plainly(row.sampling)[place] for place, row in enumerate(rows)]
    for row, found, plain in zip(rows, run(engine, rows), expected, strict=True):
        assert found == plain, row


@pytest.mark.parametrize("number", range(len(in_batches())))
def test_drafts_change_no_token(
    number: int, demo_engine: Callable[..., Engine], plainly: Callable[[str], list[list[int]]]
) -> None:
    compare(demo_engine, plainly, in_batches()[number])


def test_greedy_drafts_say_what_mlx_lm_s_own_generation_says(
    demo_engine: Callable[..., Engine], plainly: Callable[[str], list[list[int]]]
) -> None:
    oracle = Oracle.load(EMBEDDED["demo"])
    tokenizer = demo_engine("plain").tokenizer
    for place in (0, 3):
        expected = oracle.tokens(tokenizer.encode(PROMPTS[place]), MAX_TOKENS)
        assert plainly("greedy")[place] == expected


@pytest.mark.soak
@pytest.mark.parametrize("case", [Case(*values) for values in product(*FACTORS)], ids=str)
def test_drafts_change_no_token_in_any_combination(
    case: Case, demo_engine: Callable[..., Engine], plainly: Callable[[str], list[list[int]]]
) -> None:
    compare(demo_engine, plainly, [case] * case.batch)
