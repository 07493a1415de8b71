"""The two rules at the engine: what they accept, and what the classical one samples."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from engine.acceptance import Coupled, Rejection
from engine.batch import Window
from engine.build import Parts
from engine.draw import DrawSource, Settings
from engine.engine import Engine
from engine.sampling_params import SamplingParams
from engine.voice import Wanted
from scheduler.round import Row

PROMPTS = ("Once upon a time there was", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,")


@pytest.mark.parametrize("looks_up", [False, True])
def test_the_classical_rule_samples_the_target_s_distribution_and_keeps_what_it_can(
    looks_up: bool,
) -> None:
    """Chi-square over 8 tokens and 4,000 seeds, for sampled drafts and for certain ones."""
    count, vocab_size = 4000, 8
    random = np.random.default_rng(0)
    target, drafter = random.normal(size=(2, vocab_size)).astype(np.float32) * 1.5
    settings = Settings.of(SamplingParams(temperature=1.0), vocab_size)
    draws = [DrawSource(settings, seed, 0, (1, 2)).draw() for seed in range(count)]
    rule = Rejection(vocab_size)
    rule.begin_round()
    if looks_up:
        drafts = [3] * count
    else:
        logits = mx.broadcast_to(mx.array(drafter), (count, vocab_size))
        drafts = rule.choose(range(count), 0, draws, logits).tolist()
    windows = [
        Window(Row(number, (2,), 1, (1,), num_drafts=1), (draft,))
        for number, draft in enumerate(drafts)
    ]
    wanted = [Wanted(window, 0) for window in windows]
    picks = rule.pick(wanted, draws, mx.broadcast_to(mx.array(target), (count, vocab_size)))

    expected = np.exp(target) / np.exp(target).sum() * count
    found = np.bincount(picks.token_ids(), minlength=vocab_size)
    assert ((found - expected) ** 2 / expected).sum() < 24.3  # 0.999 at 7 degrees of freedom
    offered = np.eye(vocab_size)[3] if looks_up else np.exp(drafter) / np.exp(drafter).sum()
    most = np.minimum(expected / count, offered).sum()
    kept = np.mean(np.array(drafts) == np.array(picks.token_ids()))
    assert abs(kept - most) < 3.3 * (most * (1 - most) / count) ** 0.5


def test_a_narrower_drafter_sees_the_target_s_own_noise() -> None:
    settings = Settings.of(SamplingParams(temperature=1.0), 50)
    draws = [DrawSource(settings, seed, 0, (1,)).draw() for seed in range(40)]
    narrow, rule = mx.zeros((40, 30)), Coupled(50)
    rule.begin_round()
    drafts = rule.choose(range(40), 0, draws, narrow).tolist()
    wanted = [Wanted(Window(Row(n, (1,), 0, (1,))), 0) for n in range(40)]
    picks = rule.pick(wanted, draws, mx.zeros((40, 50))).token_ids()

    assert all(draft == token for draft, token in zip(drafts, picks, strict=True) if token < 30)


@pytest.mark.parametrize("drafter", ["peer", "lookup"])
def test_the_classical_rule_is_reproducible_and_greedy_stays_greedy(
    drafter: str, demo_parts: Callable[[str], Parts]
) -> None:
    parts = demo_parts(drafter)
    options = replace(parts.options, speculate=3, acceptance="rejection")

    def say(parts: Parts, temperature: float) -> list[list[int]]:
        params = SamplingParams(max_tokens=12, seed=3, temperature=temperature, ignore_eos=True)
        return [answer.token_ids for answer in Engine(parts).generate(PROMPTS, params)]

    classical = replace(parts, options=options)
    assert say(classical, 1.0) == say(classical, 1.0)
    assert say(classical, 0.0) == say(demo_parts("plain"), 0.0)
