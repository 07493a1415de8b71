"""Where a run of new tokens ends: at an end-of-sequence id, a stop id, or the token limit."""

from collections.abc import Sequence

from .request import FinishReason, Request


def cut(
    request: Request, num_generated: int, tokens: Sequence[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Return the part of ``tokens`` that the request keeps, and why it ends there, if it does.

    ``num_generated`` tokens came before. The ending id itself is kept. Ids end nothing before
    ``min_tokens``; on the last permitted token an ending id wins over the limit.
    """
    for index, token in enumerate(tokens):
        count = num_generated + index + 1
        if count >= request.min_tokens:
            if token in request.eos_ids:
                return tuple(tokens[: index + 1]), "eos"
            if token in request.stop_ids:
                return tuple(tokens[: index + 1]), "stop"
        if count >= request.max_tokens:
            return tuple(tokens[: index + 1]), "length"
    return tuple(tokens), None
