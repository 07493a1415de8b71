"""What parameters do to logits, in vLLM's order, each on the rows that use it.

    masks (allowed, banned, grammar, min_tokens) -> bias -> penalties -> temperature -> min_p
    -> top_k -> top_p

The result of a row is bitwise the same whatever rows stand beside it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .draw import Draw, Settings

_NARROW = 1024
"""How many of the likeliest tokens top_p looks at before it sorts a whole vocabulary."""


def take_rows(x: mx.array, rows: Sequence[int]) -> mx.array:
    """Return ``rows`` (ascending) of x [N, ...]; x itself where that is all of them."""
    return x if len(rows) == x.shape[0] else x[_index(rows)]


def put_rows(x: mx.array, rows: Sequence[int], values: mx.array) -> mx.array:
    """Return x [N, ...] with ``values`` in ``rows`` (ascending); x is left as it was."""
    if len(rows) == x.shape[0]:
        return values
    result = x[...]
    result[_index(rows)] = values
    return result


def processed_logits(draws: Sequence[Draw], logits: mx.array) -> mx.array:
    """Return float32 [N, V]: what each draw's token is picked from, -inf where it may not be.

    For a greedy draw that is before the temperature; its pick is the argmax.
    """
    x = _penalize(draws, _bias(draws, _mask(draws, logits.astype(mx.float32))))
    sampled = [row for row, draw in enumerate(draws) if not draw.settings.greedy]
    if sampled:
        settings = [draws[row].settings for row in sampled]
        x = put_rows(x, sampled, _warp(settings, take_rows(x, sampled)))
    return x


def _mask(draws: Sequence[Draw], x: mx.array) -> mx.array:
    rows, masks = [], []
    for row, draw in enumerate(draws):
        mask, permitted = draw.mask, draw.settings.permitted
        if mask is not None and permitted is not None:
            mask = mask & permitted
        elif mask is None:
            mask = permitted
        if mask is not None:
            rows.append(row)
            masks.append(mask[: x.shape[-1]])
    if not rows:
        return x
    masked = mx.where(mx.array(np.stack(masks)), take_rows(x, rows), -mx.inf)
    return put_rows(x, rows, masked)


def _bias(draws: Sequence[Draw], x: mx.array) -> mx.array:
    rows, ids, values = [], [], []
    for row, draw in enumerate(draws):
        settings = draw.settings
        biased, bias = settings.bias_ids, settings.bias
        if draw.too_early_to_end:
            rows.append(np.full(len(settings.ending_ids), row, np.int32))
            ids.append(settings.ending_ids)
            values.append(np.full(len(settings.ending_ids), -np.inf, np.float32))
            others = ~np.isin(biased, settings.ending_ids)  # of two writes either may be the last
            biased, bias = biased[others], bias[others]
        if len(biased):
            rows.append(np.full(len(biased), row, np.int32))
            ids.append(biased)
            values.append(bias)
    if not rows:
        return x
    where = np.concatenate(rows), np.concatenate(ids)
    return _at(x, where, lambda before, added: before + added, np.concatenate(values))


def _penalize(draws: Sequence[Draw], x: mx.array) -> mx.array:
    """Repetition: x / r where x > 0, else x * r, for every token of prompt and answer (Keskar et
    al., CTRL, 2019). Frequency and presence: x - f * count - p * [count > 0], for the answer's.
    """
    rows, ids, repetition, frequency, presence = [], [], [], [], []
    for row, draw in enumerate(draws):
        if draw.history is None:
            continue
        settings = draw.settings
        row_ids, counts = draw.history.counted(draw.drafts)
        rows.append(np.full(len(row_ids), row, np.int32))
        ids.append(row_ids)
        repetition.append(np.full(len(row_ids), settings.repetition_penalty, np.float32))
        frequency.append(np.float32(settings.frequency_penalty) * counts)
        presence.append(np.float32(settings.presence_penalty) * (counts > 0))
    if not rows or not sum(map(len, rows)):
        return x
    columns = (np.concatenate(parts) for parts in (repetition, frequency, presence))
    return _at(x, (np.concatenate(rows), np.concatenate(ids)), _penalized, *columns)


def _penalized(
    before: mx.array, repetition: mx.array, frequency: mx.array, presence: mx.array
) -> mx.array:
    repeated = mx.where(before > 0, before / repetition, before * repetition)
    return repeated - frequency - presence


def _at(
    x: mx.array,
    where: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
    change: Callable[..., mx.array],
    *columns: npt.NDArray[np.float32],
) -> mx.array:
    """Return x with ``change`` applied at (row, id) pairs; a drafter's x may be too narrow."""
    inside = where[1] < x.shape[-1]
    rows, ids = mx.array(where[0][inside]), mx.array(where[1][inside])
    result = x[...]
    result[rows, ids] = change(x[rows, ids], *(mx.array(column[inside]) for column in columns))
    return result


def _warp(settings: Sequence[Settings], x: mx.array) -> mx.array:
    """Divide by the temperature and cut what min_p, top_k and top_p leave out; x [S, V]."""
    x = x / _column(one.temperature for one in settings)
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for row, one in enumerate(settings):
        if one.top_k or one.top_p < 1 or one.min_p:
            groups[_width(one, x.shape[-1]), one.top_k > 0].append(row)
    for (width, _), rows in groups.items():
        members, part = [settings[row] for row in rows], take_rows(x, rows)
        x = put_rows(x, rows, mx.where(part < _floor(members, part, width), -mx.inf, part))
    return x


def _width(one: Settings, vocab_size: int) -> int:
    """How many of a row's largest values its cut has to see: a function of the row alone."""
    if one.top_k:
        return min(1 << (one.top_k - 1).bit_length(), vocab_size)
    return vocab_size if one.top_p < 1 else 0


def _floor(settings: Sequence[Settings], x: mx.array, width: int) -> mx.array:
    """Return [S, 1]: the least value that each row keeps. Equal values stay or go together.

    min_p keeps p >= min_p * max p, top_k what is not below the k-th largest value, top_p the
    likeliest tokens until their share of what the others left reaches top_p.
    """
    peak = mx.max(x, axis=-1, keepdims=True)
    floor = peak + _column(math.log(one.min_p) if one.min_p else -math.inf for one in settings)
    if not width:
        return floor
    top_p = _column(one.top_p for one in settings)
    if not settings[0].top_k:  # nor has any other of these rows
        wanted = _masses(x, peak, floor).sum(axis=-1, keepdims=True) * top_p
        return _nucleus(x, peak, floor, wanted)
    largest = _largest(x, width)
    top_k = mx.array([[one.top_k] for one in settings], dtype=mx.int32)
    kth = mx.take_along_axis(largest, mx.minimum(top_k, width) - 1, axis=-1)
    floor = mx.maximum(floor, kth)
    if all(one.top_p == 1 for one in settings):
        return floor
    # values equal to the k-th may go on beyond ``largest``; they count in the total
    beyond = (x >= floor).sum(axis=-1, keepdims=True) - (largest >= floor).sum(-1, keepdims=True)
    total = _masses(largest, peak, floor).sum(-1, keepdims=True) + beyond * mx.exp(floor - peak)
    return mx.where(top_p < 1, _least(largest, peak, floor, total * top_p), floor)


def _nucleus(x: mx.array, peak: mx.array, floor: mx.array, wanted: mx.array) -> mx.array:
    """Return [S, 1]: the least of the largest values that together have the mass ``wanted``.

    Sorting 150,000 values takes 15 ms a row on a CPU, selecting 1,024 of them 1 ms: rows whose
    nucleus lies within those, which an evaluation tells, are not sorted. The result is the same.
    """
    if mx.default_device() != mx.cpu or x.shape[-1] <= 2 * _NARROW:
        return _least(_largest(x, x.shape[-1]), peak, floor, wanted)
    largest = _largest(x, _NARROW)
    least = _least(largest, peak, floor, wanted)
    reached = _masses(largest, peak, floor).sum(axis=-1, keepdims=True)
    wide = np.flatnonzero(np.array(reached < wanted)).tolist()
    if not wide:
        return least
    parts = [take_rows(array, wide) for array in (x, peak, floor, wanted)]
    return put_rows(least, wide, _least(_largest(parts[0], x.shape[-1]), *parts[1:]))


def _least(largest: mx.array, peak: mx.array, floor: mx.array, wanted: mx.array) -> mx.array:
    """Return [S, 1]: the last of the descending values before which ``wanted`` is not reached."""
    before = mx.cumsum(_masses(largest, peak, floor), axis=-1, inclusive=False)
    kept = mx.where((before < wanted) & (largest >= floor), largest, mx.inf)
    return kept.min(axis=-1, keepdims=True)


def _masses(x: mx.array, peak: mx.array, floor: mx.array) -> mx.array:
    """Return probabilities, up to a factor, of the values that are not below ``floor``."""
    return mx.where(x < floor, 0.0, mx.exp(x - peak))


def _largest(x: mx.array, width: int) -> mx.array:
    """Return the ``width`` largest values of each row, in descending order."""
    return -mx.sort(-(mx.topk(x, width, axis=-1) if width < x.shape[-1] else x), axis=-1)


def _index(rows: Sequence[int]) -> mx.array:
    return mx.array(np.array(rows, np.int32))


def _column(values: Iterable[float]) -> mx.array:
    return mx.array([[value] for value in values], dtype=mx.float32)
