"""Log-probabilities of tokens and of the likeliest ones beside them."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

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
        if any(self.num_top):
            self.arrays += [x, total[:, 0]]

    def read(self) -> list[TokenLogprob]:
        """Return one entry a row; tokens that were masked out are not among the likeliest."""
        tokens, chosen, *rest = (np.array(array, copy=False) for array in self.arrays)
        result = []
        for row, num_top in enumerate(self.num_top):
            top: tuple[tuple[int, float], ...] = ()
            if num_top:
                x, total = rest[0][row], rest[1][row]
                top = tuple((int(token), float(x[token] - total)) for token in _top(x, num_top))
            result.append(TokenLogprob(int(tokens[row]), float(chosen[row]), top))
        return result


def _top(x: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp]:
    """Return the ids of the largest values, in order; the lower id first among equals.

    On the host: a selection takes 1 ms at 150,000 ids; a device would have to sort them all.
    """
    count = min(count, len(x))
    ids = np.flatnonzero((x >= np.partition(x, -count)[-count]) & (x > -np.inf))
    return ids[np.argsort(-x[ids], kind="stable")][:count]
