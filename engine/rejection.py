"""The classical rule of speculative sampling, beside the coupled one that is the default.

A draft x ~ q is kept with probability min(1, p(x) / q(x)); otherwise the token is drawn from the
normalised max(p - q, 0) (Leviathan et al., Fast inference from transformers via speculative
decoding, 2023). Either way it is distributed as p. Its noise is keyed by position too, but the
token depends on q, so an answer is reproducible for one drafter and depth only.
"""

from collections.abc import Sequence

import mlx.core as mx

from .draw import Draw
from .logits import processed_logits, put_rows, take_rows
from .noise import ACCEPT_STREAM, RESIDUAL_STREAM, gumbel, uniform


def probabilities(draws: Sequence[Draw], logits: mx.array, vocab_size: int) -> mx.array:
    """Return float32 [N, vocab_size]: what ``pick`` draws each token from.

    A greedy draw has probability one at its argmax. ``logits`` [N, V] of a drafter may be narrower
    than ``vocab_size``: it never drafts the other tokens.
    """
    processed = processed_logits(draws, logits)
    result = mx.softmax(processed, axis=-1)
    greedy = [row for row, draw in enumerate(draws) if draw.settings.greedy]
    if greedy:
        best = mx.argmax(take_rows(processed, greedy), axis=-1)
        certain = mx.arange(logits.shape[-1]) == best[:, None]
        result = put_rows(result, greedy, certain.astype(mx.float32))
    return mx.pad(result, [(0, 0), (0, vocab_size - logits.shape[-1])])


def accept_or_resample(
    draws: Sequence[Draw], target: mx.array, drafter: mx.array, drafts: mx.array
) -> tuple[mx.array, mx.array]:
    """Return (kept, tokens), bool and uint32 [N]: the draft where it is kept, else another token.

    ``target`` and ``drafter`` are probabilities [N, V] at the positions of ``drafts`` [N], which
    were picked from ``drafter``. Of a window only the first rejection and what is before it count.
    """
    keys = [draw.key for draw in draws]
    at_draft = drafts.astype(mx.uint32)[:, None]
    wanted = mx.take_along_axis(target, at_draft, axis=-1)[:, 0]
    offered = mx.take_along_axis(drafter, at_draft, axis=-1)[:, 0]
    kept = uniform(keys, ACCEPT_STREAM) * offered < wanted
    residual = mx.maximum(target - drafter, 0)
    # rounding may leave nothing where p and q are equal
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, target)
    noise = gumbel(keys, target.shape[-1], RESIDUAL_STREAM)
    other = mx.argmax(mx.log(residual) + noise, axis=-1)
    return kept, mx.where(kept, drafts.astype(mx.uint32), other)
