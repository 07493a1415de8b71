"""Picks have the distribution that was asked for, and drafts are accepted as often as they can be.

Every number here follows from the seeds, so a bound that holds once holds always.
"""

import mlx.core as mx
import numpy as np
import pytest

from engine.draw import Draw, Settings
from engine.noise import NoiseKey, RoundNoise
from engine.rejection import accept_or_resample, probabilities
from engine.sampling import pick
from engine.sampling_params import SamplingParams


def draws_at_many_positions(count: int, vocab_size: int, seed: int, **params) -> list[Draw]:
    shared = Settings.of(SamplingParams(**params), vocab_size)
    return [Draw(shared, NoiseKey(seed, 0, position), position) for position in range(count)]


def chi_square(tokens: np.ndarray, expected: np.ndarray) -> float:
    """Return how many standard deviations the statistic lies above its mean (df, 2 df)."""
    assert not np.isin(tokens, np.flatnonzero(expected == 0)).any()
    counts = np.bincount(tokens, minlength=len(expected))[expected > 0]
    expected = expected[expected > 0] * len(tokens)
    freedom = len(expected) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 7},
        {"temperature": 1.7, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1, "logit_bias": {3: 1.5}},
    ],
)
def test_tokens_picked_at_many_positions_have_the_processed_distribution(params) -> None:
    logits = np.random.default_rng(4).normal(size=16).astype(np.float32)
    rows = mx.array(np.tile(logits, (20_000, 1)))
    draws = draws_at_many_positions(20_000, 16, seed=11, **params)
    expected = np.array(probabilities(draws[:1], rows[:1], 16))[0].astype(np.float64)
    tokens = np.array(pick(draws, rows, logprobs=False).tokens)
    assert chi_square(tokens, expected / expected.sum()) < 4


def distributions(vocab_size: int, distance: float, count: int, seed: int):
    """Return logits of a target and of a drafter ``distance`` away, and 1 - total variation."""
    random = np.random.default_rng(seed)
    target = (random.normal(size=(count, vocab_size)) * 2.5).astype(np.float32)
    drafter = target + (random.normal(size=target.shape) * distance).astype(np.float32)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (target, drafter))
    return target, drafter, np.minimum(p, q).sum(axis=-1).mean()


@pytest.mark.parametrize("distance", [0.1, 0.25, 0.5, 1.0])
def test_shared_noise_couples_draft_and_target_near_the_optimum(distance: float) -> None:
    target, drafter, optimum = distributions(500, distance, 4000, seed=2)
    draws = draws_at_many_positions(4000, 500, seed=8, temperature=1.0)
    noise = RoundNoise(500)
    drafted = np.array(pick(draws, mx.array(drafter), noise, logprobs=False).tokens)
    picked = np.array(pick(draws, mx.array(target), noise, logprobs=False).tokens)
    rate = (drafted == picked).mean()
    # the coupled rule's bounds: Daliri, Musco, Suresh, Coupling without communication, 2024
    assert (1 - (1 - optimum)) / (1 + (1 - optimum)) - 0.02 < rate < optimum + 0.02
    alone = np.array(pick(draws, mx.array(drafter), logprobs=False).tokens)
    assert np.array_equal(alone, drafted)
    greedy = (drafter.argmax(axis=-1) == picked).mean()
    assert rate > greedy


def test_the_classical_rule_gives_the_target_distribution_and_the_optimal_rate() -> None:
    target, drafter, optimum = distributions(12, 0.8, 1, seed=5)
    draws = draws_at_many_positions(20_000, 12, seed=3, temperature=1.0)
    rows_p, rows_q = (mx.array(np.tile(x, (20_000, 1))) for x in (target, drafter))
    p, q = probabilities(draws, rows_p, 12), probabilities(draws, rows_q, 12)
    drafts = pick(draws, rows_q, logprobs=False).tokens
    kept, tokens = accept_or_resample(draws, p, q, drafts)
    expected = np.array(p)[0].astype(np.float64)
    assert chi_square(np.array(tokens), expected / expected.sum()) < 4
    assert np.array(kept).mean() == pytest.approx(optimum, abs=0.01)
    assert np.array_equal(np.array(tokens)[np.array(kept)], np.array(drafts)[np.array(kept)])


def test_the_classical_rule_takes_drafts_of_a_greedy_drafter_and_of_a_smaller_vocabulary() -> None:
    target, drafter, _ = distributions(12, 0.5, 1, seed=6)
    draws = draws_at_many_positions(20_000, 12, seed=3, temperature=1.0)
    greedy = draws_at_many_positions(20_000, 12, seed=3)
    rows_p = mx.array(np.tile(target, (20_000, 1)))
    rows_q = mx.array(np.tile(drafter[:, :9], (20_000, 1)))
    p = probabilities(draws, rows_p, 12)
    for drafting in (draws, greedy):
        q = probabilities(drafting, rows_q, 12)
        drafts = pick(drafting, rows_q, logprobs=False).tokens
        _, tokens = accept_or_resample(draws, p, q, drafts)
        expected = np.array(p)[0].astype(np.float64)
        assert chi_square(np.array(tokens), expected / expected.sum()) < 4


def test_under_the_classical_rule_a_greedy_target_keeps_its_argmax_only() -> None:
    target, drafter, _ = distributions(12, 0.5, 200, seed=7)
    draws = draws_at_many_positions(200, 12, seed=3)
    p = probabilities(draws, mx.array(target), 12)
    q = probabilities(draws, mx.array(drafter), 12)
    drafts = mx.array(drafter.argmax(axis=-1).astype(np.uint32))
    kept, tokens = accept_or_resample(draws, p, q, drafts)
    assert np.array_equal(np.array(tokens), target.argmax(axis=-1))
    assert np.array_equal(np.array(kept), target.argmax(axis=-1) == drafter.argmax(axis=-1))


def test_a_row_of_the_classical_rule_does_not_depend_on_the_others() -> None:
    target, drafter, _ = distributions(300, 0.7, 9, seed=1)
    draws = draws_at_many_positions(9, 300, seed=4, temperature=0.8, top_p=0.9)
    p = probabilities(draws, mx.array(target), 300)
    q = probabilities(draws, mx.array(drafter), 300)
    drafts = pick(draws, mx.array(drafter), logprobs=False).tokens
    kept, tokens = accept_or_resample(draws, p, q, drafts)
    for row in range(9):
        one = slice(row, row + 1)
        alone = accept_or_resample(draws[one], p[one], q[one], drafts[one])
        assert (alone[0].item(), alone[1].item()) == (kept[row].item(), tokens[row].item())
