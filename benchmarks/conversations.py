"""Conversations of many users at once: each turn begins with all that was said before.

mlx-lm's ``batch_generate`` runs each turn from its beginning, as whoever keeps nothing must, and
once more with the caches it gave back after the turn before, kept and handed in by the caller.
"""

import time
from collections.abc import Callable
from typing import Any

from .sides import NEW_TOKENS, PARAMS, Prompts, Result, Sides, run_mlx_lm


def run_conversations(sides: Sides, users: int, turns: int, first: int, more: int) -> Result:
    """Each turn's prompt is all that was said, and ``more`` new tokens; the first has ``first``."""

    def words(user: int, turn: int, count: int) -> list[int]:
        return [(13 * place + 211 * user + 97 * turn) % 8000 + 1 for place in range(count)]

    def converse(answer: Callable[[Prompts], list[list[int]]]) -> tuple[float, int]:
        said: Prompts = [[] for _ in range(users)]
        begin, total = time.perf_counter(), 0
        for turn in range(turns):
            prompts = [
                said[user] + words(user, turn, more if turn else first) for user in range(users)
            ]
            total += sum(map(len, prompts))
            answers = answer(prompts)
            said = [prompt + ids for prompt, ids in zip(prompts, answers, strict=True)]
        return time.perf_counter() - begin, total

    def ours(prompts: Prompts) -> list[list[int]]:
        return [one.token_ids for one in sides.on.generate(prompts, PARAMS)]

    def theirs(prompts: Prompts) -> list[list[int]]:
        ids: list[list[int]] = run_mlx_lm(sides.peer, prompts)[1].token_ids
        return ids

    kept: dict[str, Any] = {"caches": None, "seen": [0] * users}

    def theirs_going_on(prompts: Prompts) -> list[list[int]]:
        new = [prompt[seen:] for prompt, seen in zip(prompts, kept["seen"], strict=True)]
        choices = {"prompt_caches": kept["caches"], "return_prompt_caches": True}
        response = run_mlx_lm(sides.peer, new, **choices)[1]
        kept["caches"] = response.caches
        # the last token of an answer was never run
        kept["seen"] = [len(prompt) + NEW_TOKENS - 1 for prompt in prompts]
        ids: list[list[int]] = response.token_ids
        return ids

    sides.on.scheduler.clear_cache()
    before = sides.on.stats().scheduler.prompt_tokens
    our_seconds, prompt_tokens = converse(ours)
    computed = sides.on.stats().scheduler.prompt_tokens - before
    their_seconds, _ = converse(theirs)
    going_on, _ = converse(theirs_going_on)
    return {
        "users": users,
        "turns": turns,
        "first_tokens": first,
        "more_tokens": more,
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_computed": computed,
        "total_s": round(our_seconds, 3),
        "mlx_lm_total_s": round(their_seconds, 3),
        "mlx_lm_with_kept_caches_total_s": round(going_on, 3),
        "over_mlx_lm": round(their_seconds / our_seconds, 2),
        "over_mlx_lm_with_kept_caches": round(going_on / our_seconds, 2),
    }
