"""Noise depends on its own key only, and keys do not collide."""

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.noise import (
    ACCEPT_STREAM,
    RESIDUAL_STREAM,
    SAMPLE_STREAM,
    NoiseAfter,
    NoiseKey,
    RoundNoise,
    gumbel,
    key_words,
    uniform,
)

keys = st.builds(
    NoiseKey, st.integers(0, 2**64 - 1), st.integers(0, 1023), st.integers(0, 2**31 - 1)
)


@settings(max_examples=25, deadline=None)
@given(st.lists(keys, min_size=1, max_size=9))
def test_a_row_of_noise_is_bitwise_what_its_key_gives_alone(batch: list[NoiseKey]) -> None:
    together = np.array(gumbel(batch, 517))
    for key, row in zip(batch, together, strict=True):
        words = mx.array(key_words([key])[0])
        assert np.array_equal(row, np.array(mx.random.gumbel(shape=(517,), key=words)))


def test_keys_of_neighbouring_seeds_samples_positions_and_streams_are_all_different() -> None:
    grid = [NoiseKey(s, i, p) for s in range(20) for i in range(20) for p in range(50)]
    words = np.concatenate(
        [key_words(grid, s) for s in (SAMPLE_STREAM, ACCEPT_STREAM, RESIDUAL_STREAM)]
    )
    assert len(np.unique(words, axis=0)) == len(words) == 60_000
    bits = np.unpackbits(words.view(np.uint8), axis=-1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01


def test_keys_are_the_same_on_every_machine_and_in_every_version() -> None:
    words = key_words([NoiseKey(0, 0, 0), NoiseKey(2**64 - 1, 3, 1000)])
    assert words.tolist() == [[792179100, 3669002912], [144285942, 3564185811]]


def test_neighbouring_positions_are_not_correlated() -> None:
    noise = np.array(gumbel([NoiseKey(5, 0, position) for position in range(64)], 2000))
    correlation = np.corrcoef(noise) - np.eye(64)
    assert np.abs(correlation).max() < 0.1
    assert abs(noise.mean() - 0.5772) < 0.02


def test_a_round_draws_the_noise_of_a_position_once() -> None:
    noise = RoundNoise(100)
    first = [NoiseKey(1, 0, 5), NoiseKey(2, 0, 9)]
    drafted = np.array(noise.rows(first))
    verified = np.array(noise.rows([NoiseKey(2, 0, 9), NoiseKey(1, 0, 6), NoiseKey(1, 0, 5)]))
    assert np.array_equal(verified[[2, 0]], drafted)
    assert np.array_equal(verified[1], np.array(gumbel([NoiseKey(1, 0, 6)], 100))[0])
    noise.clear()
    assert np.array_equal(np.array(noise.rows(first)), drafted)


def test_uniform_numbers_depend_on_their_key_alone() -> None:
    batch = [NoiseKey(1, 0, position) for position in range(500)]
    together = np.array(uniform(batch, ACCEPT_STREAM))
    assert np.array_equal(together[7:8], np.array(uniform(batch[7:8], ACCEPT_STREAM)))
    assert together.min() >= 0
    assert together.max() < 1
    assert abs(together.mean() - 0.5) < 0.05


def test_noise_of_positions_that_the_device_knows_is_that_of_their_own_keys() -> None:
    keys = [NoiseKey(7, 0, 40), NoiseKey(7, 0, 40), NoiseKey(2**63, 3, 5)]
    further = [2, 0, 3]
    found = NoiseAfter(33, mx.array(further), 3).rows(keys)
    pairs = zip(keys, further, strict=True)
    expected = gumbel([key._replace(position=key.position + more) for key, more in pairs], 33)

    assert mx.array_equal(found, expected)
