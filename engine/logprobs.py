"""Log-probabilities of tokens and of the likeliest ones beside them."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from .answer import TokenLogprob


class Logprobs:
    """Log-probabilities of one token a row, computed lazily on the device.

    ``logits`` [R, V] of any float type are normalised in float32; ``tokens`` [R]; ``num_top`` says
    for each row how many of the likeliest tokens to add. Equal values are ordered by id.
    """

    def __init__(self, logits: mx.array, tokens: mx.array, num_top: Sequence[int]) -> None:
        x = logits.astype(mx.float32)
        total = mx.logsumexp(x, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(x, tokens.astype(mx.uint32)[:, None], axis=-1) - total
        self.num_top = list(num_top)
        self.arrays: list[mx.array] = [tokens, chosen[:, 0]]
        """What read() needs evaluated; pass it to the round's mx.eval."""
        most = min(max(self.num_top, default=0), x.shape[-1])
        if most:
            ids = _likeliest(x, most)
            self.arrays += [ids, mx.take_along_axis(x, ids, axis=-1) - total]

    def read(self) -> list[TokenLogprob]:
        """Return one entry a row; tokens that were masked out are not among the likeliest."""
        tokens, chosen, *top = (np.array(array) for array in self.arrays)
        result = []
        for row, num_top in enumerate(self.num_top):
            likeliest: tuple[tuple[int, float], ...] = ()
            if num_top:
                pairs = zip(top[0][row, :num_top], top[1][row, :num_top], strict=True)
                likeliest = tuple(
                    (int(token), float(value)) for token, value in pairs if value > -np.inf
                )
            result.append(TokenLogprob(int(tokens[row]), float(chosen[row]), likeliest))
        return result


def _likeliest(x: mx.array, count: int) -> mx.array:
    """Return the ids [R, count] of the largest values, in order; the lower id first among equals.

    Value and id make one 64-bit number, so that no two are equal and a selection will do where a
    stable sort of the whole vocabulary would be needed.
    """
    bits = (x + 0.0).view(mx.uint32)  # -0.0 becomes 0.0
    ascending = mx.where(bits >> 31, ~bits, bits | 0x80000000).astype(mx.uint64)
    last = x.shape[-1] - 1
    ids = mx.arange(last, -1, -1, dtype=mx.uint64)
    keys = (ascending << 32) | ids
    largest = mx.sort(mx.topk(keys, count, axis=-1), axis=-1)[:, ::-1]
    return last - (largest & 0xFFFFFFFF).astype(mx.int32)
