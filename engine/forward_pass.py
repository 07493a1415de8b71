"""A batch that the model has taken: what came of it, and what of its windows stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from scheduler.round import Verdict

from .batch import Batch, Window
from .view import BatchView
from .voice import Wanted


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """A batch that the model has taken, and what has not been kept of it yet."""

    view: BatchView
    caches: list[Any]
    hidden: mx.array  # (rows, width, size)
    wanted: list[Wanted]
    output: mx.array  # logits (wanted positions, vocabulary), or hidden where none is wanted
    pending: list[mx.array]  # to evaluate before anything is kept
    is_left: bool  # no drafter is to follow it


def wanted_of(batch: Batch) -> tuple[list[Wanted], list[int]]:
    """Positions to pick tokens at, and where their hidden states lie in (rows * width)."""
    wanted, places = [], []
    for number, window in enumerate(batch.windows):
        if window.row.samples:
            last_certain = number * batch.width + len(window.row.tokens) - 1
            for num_ahead in range(len(window.drafts) + 1):
                wanted.append(Wanted(window, num_ahead))
                places.append(last_certain + num_ahead)
    return wanted, places


def judge(
    windows: Sequence[Window], wanted: Sequence[Wanted], tokens: Sequence[int]
) -> list[Verdict]:
    """Accept each window's drafts up to the first that the target did not pick."""
    picks: dict[int, list[int]] = {}
    for want, token in zip(wanted, tokens, strict=True):
        picks.setdefault(want.window.row.seq_id, []).append(int(token))
    verdicts = []
    for window in windows:
        seq_id, drafts = window.row.seq_id, window.drafts
        if not window.row.samples:
            verdicts.append(Verdict(seq_id))
            continue
        chosen = picks[seq_id]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
            accepted += 1
        gained = tuple(chosen[: accepted + 1])
        verdicts.append(Verdict(seq_id, gained, len(drafts), accepted))
    return verdicts
