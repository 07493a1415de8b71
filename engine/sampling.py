"""Picks tokens: argmax(processed logits + noise), many draws at once, each as if it were alone."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .answer import TokenLogprob
from .draw import Draw
from .likeliest import likeliest_on_device
from .logits import processed_logits, put_rows, take_rows
from .logprobs import Logprobs
from .noise import RoundNoise
from .readback import Readback

__all__ = ["Picked", "Picks", "pick"]


def pick(
    draws: Sequence[Draw],
    logits: mx.array,
    noise: RoundNoise | None = None,
    *,
    logprobs: bool = True,
    settle: Callable[[mx.array], mx.array] | None = None,
) -> "Picks":
    """Pick one token for each draw from ``logits`` [N, V], N = len(draws); nothing is evaluated.

    ``noise`` shares a round's noise between drafts and verification; a drafter whose V is smaller
    than the noise is wide reads its first V numbers. Without it each draw's noise has width V.
    Drafts pass ``logprobs=False``. Ties go to the lowest id. ``settle`` has the last word: it takes
    the tokens picked, uint32 [N], and returns those that stand.
    """
    if len(draws) != logits.shape[0]:
        raise ValueError(f"{len(draws)} draws for {logits.shape[0]} rows of logits")
    worked = [row for row, draw in enumerate(draws) if not draw.plain]
    tokens: mx.array | None = None
    if len(worked) < len(draws):
        tokens = likeliest_on_device(logits)
    processed: mx.array | None = None
    if worked:
        members = [draws[row] for row in worked]
        processed = processed_logits(members, take_rows(logits, worked))
        picked = likeliest_on_device(_noisy(members, processed, noise))
        tokens = picked if tokens is None else put_rows(tokens, worked, picked)
    if tokens is None:  # no draws at all
        tokens = mx.zeros((0,), dtype=mx.uint32)
    picks = Picks(tokens if settle is None else settle(tokens))
    if worked and processed is not None:
        picks.watch(draws, worked, processed)
    if logprobs:
        picks.report(draws, logits, worked, processed)
    return picks


def _noisy(draws: Sequence[Draw], processed: mx.array, noise: RoundNoise | None) -> mx.array:
    sampled = [row for row, draw in enumerate(draws) if not draw.settings.greedy]
    if not sampled:
        return processed
    width = processed.shape[-1]
    noise = RoundNoise(width) if noise is None else noise
    drawn = noise.rows([draws[row].key for row in sampled])[:, :width]
    return put_rows(processed, sampled, take_rows(processed, sampled) + drawn)


class Picked(NamedTuple):
    """What was picked for one draw."""

    token: int
    logprob: TokenLogprob | None  # None where none was asked for
    is_possible: bool  # False: every token is masked, and this one means nothing


class Picks:
    """The tokens picked, on the device until read."""

    def __init__(self, tokens: mx.array) -> None:
        self.tokens = tokens
        """uint32 [N]"""
        self._read: list[Picked] = []
        self._reports: list[tuple[list[int], Logprobs]] = []
        self._watched: list[int] = []
        self._possible: mx.array | None = None

    def __len__(self) -> int:
        return self.tokens.size

    @cached_property
    def _readback(self) -> Readback:
        """The tokens on their way to the host; made only where somebody is going to read them."""
        return Readback(self.tokens)

    @property
    def arrays(self) -> list[mx.array]:
        """What the readers below need; pass it to the round's one mx.eval."""
        arrays = [self._readback.array]
        for _, report in self._reports:
            arrays += report.arrays
        if self._possible is not None:
            arrays.append(self._possible)
        return arrays

    def read(self) -> list[Picked]:
        """Return what was picked for each draw, read once. Evaluates."""
        if not self._read:
            mx.eval(self.arrays)
            impossible = set(self.impossible())
            columns = zip(self.token_ids(), self.logprobs(), strict=True)
            self._read = [
                Picked(token, logprob, row not in impossible)
                for row, (token, logprob) in enumerate(columns)
            ]
        return self._read

    def token_ids(self) -> list[int]:
        """Return the ids, [N]. Evaluates."""
        return self._readback.read()

    def logprobs(self) -> list[TokenLogprob | None]:
        """Return an entry for each draw that asked for one, of the kind it asked for. Evaluates."""
        entries: list[TokenLogprob | None] = [None] * self.tokens.shape[0]
        for rows, report in self._reports:
            for row, entry in zip(rows, report.read(), strict=True):
                entries[row] = entry
        return entries

    def impossible(self) -> list[int]:
        """Return the draws whose every token is masked; what was picked there means nothing.

        Only a grammar's mask can do that (beside a request's own banned tokens). Evaluates.
        """
        if self._possible is None:
            return []
        possible = np.array(self._possible)
        return [
            row for row, is_possible in zip(self._watched, possible, strict=True) if not is_possible
        ]

    def watch(self, draws: Sequence[Draw], worked: Sequence[int], processed: mx.array) -> None:
        """Have the masked rows of ``processed``, which are ``worked``, checked for a way out."""
        masked = [i for i, row in enumerate(worked) if draws[row].mask is not None]
        if masked:
            self._watched = [worked[i] for i in masked]
            self._possible = mx.max(take_rows(processed, masked), axis=-1) > -mx.inf

    def report(
        self,
        draws: Sequence[Draw],
        logits: mx.array,
        worked: Sequence[int],
        processed: mx.array | None,
    ) -> None:
        """Compute the log-probabilities that the draws ask for."""
        place = {row: i for i, row in enumerate(worked)}
        asking = [row for row, draw in enumerate(draws) if draw.settings.num_logprobs is not None]
        plain = [
            row for row in asking if not draws[row].settings.processed_logprobs or row not in place
        ]
        changed = [row for row in asking if draws[row].settings.processed_logprobs and row in place]
        if plain:
            self._report(draws, plain, take_rows(logits, plain))
        if changed and processed is not None:
            self._report(draws, changed, take_rows(processed, [place[row] for row in changed]))

    def _report(self, draws: Sequence[Draw], rows: list[int], logits: mx.array) -> None:
        num_top = [draws[row].settings.num_logprobs or 0 for row in rows]
        self._reports.append((rows, Logprobs(logits, take_rows(self.tokens, rows), num_top)))
