"""Gumbel noise that depends on (seed, sample index, position) and on nothing else.

The token at a position is the argmax of its processed logits plus this noise. Draft and verify
share it, so what a request says never depends on its neighbours, on rounds or on speculation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

SAMPLE_STREAM = 0
"""Picks the token at a position, drafted or not."""
ACCEPT_STREAM = 1
"""Decides whether the classical rejection rule keeps a draft."""
RESIDUAL_STREAM = 2
"""Picks the token after a draft that the classical rule rejected."""


class NoiseKey(NamedTuple):
    """Where a draw stands: position is absolute, counted from the start of the prompt."""

    seed: int  # 0 .. 2**64 - 1
    sample_index: int
    position: int


def key_words(keys: Sequence[NoiseKey], stream: int = SAMPLE_STREAM) -> npt.NDArray[np.uint32]:
    """Return MLX's random keys, uint32 [N, 2], for ``keys``: the two halves of a 64-bit mix.

    Each number is absorbed with an odd multiplier of its own and the finalizer of splitmix64
    (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    seeds = np.array([key.seed for key in keys], np.uint64)
    indices = np.array([key.sample_index for key in keys], np.uint64)
    positions = np.array([key.position for key in keys], np.uint64)
    state = _mix(seeds + np.uint64(0x9E3779B97F4A7C15))
    state = _mix(state ^ (indices + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03))
    state = _mix(state ^ (positions + np.uint64(1)) * np.uint64(0x8CB92BA72F3D8DD7))
    state = _mix(state + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64))
    words = np.stack([state >> np.uint64(32), state & np.uint64(0xFFFFFFFF)], axis=-1)
    return words.astype(np.uint32)


def gumbel(keys: Sequence[NoiseKey], width: int, stream: int = SAMPLE_STREAM) -> mx.array:
    """Return float32 noise [N, width], each row bitwise what its own key gives alone.

    Another width gives other numbers: draw at the target's width and slice for a drafter whose
    vocabulary is smaller.
    """
    return _gumbel(mx.array(key_words(keys, stream)), width)


def _gumbel(words: mx.array, width: int) -> mx.array:
    rows: mx.array = mx.vmap(lambda key: mx.random.gumbel(shape=(width,), key=key))(words)
    return rows


def uniform(keys: Sequence[NoiseKey], stream: int) -> mx.array:
    """Return one float32 number in [0, 1) for each key, [N]."""
    words = mx.array(key_words(keys, stream))
    numbers: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(1,), key=key))(words)
    return numbers[:, 0]


class RoundNoise:
    """Noise of one round, drawn once per (sequence, position) however often it is asked for."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: dict[NoiseKey, mx.array] = {}

    def rows(self, keys: Sequence[NoiseKey]) -> mx.array:
        """Return float32 noise [N, width] for ``keys``, drawing what is not there yet."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._rows]
        if missing:
            drawn = gumbel(missing, self.width)
            self._rows.update(zip(missing, drawn, strict=True))
            if missing == list(keys):
                return drawn
        return mx.stack([self._rows[key] for key in keys])

    def clear(self) -> None:
        """Forget the round's noise. A round that failed must clear too."""
        self._rows.clear()


class NoiseAfter(RoundNoise):
    """Noise of positions that only the device knows: so much ``further`` (rows,) than keys say."""

    def __init__(self, width: int, further: mx.array, most: int) -> None:
        """``further`` is 0 .. ``most``."""
        super().__init__(width)
        self._further = further
        self._most = most

    def rows(self, keys: Sequence[NoiseKey]) -> mx.array:
        """Return float32 noise [N, width]; ``keys`` are one for each of ``further``."""
        each = range(self._most + 1)
        words = [
            key_words([key._replace(position=key.position + more) for key in keys]) for more in each
        ]
        chosen = mx.array(np.stack(words))[self._further, mx.arange(len(keys))]
        return _gumbel(chosen, self.width)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
