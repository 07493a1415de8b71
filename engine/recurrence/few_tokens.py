"""The deferred form for windows of a few tokens, in few operations: what verifying drafts runs.

The formulas are those of ``deferred``. Queries and keys go through every product together, and so
do the records and the window's own tokens, as far as the one does not wait for the other: on a CPU
an operation costs about as much to hand over as such windows take to compute.
"""

from functools import cache, partial
from math import e

import mlx.core as mx
import numpy as np

from .deferred import Bools, Records
from .triangle import inverse


def read_few(
    q_k: mx.array, v: mx.array, gates: tuple[mx.array, mx.array], state: mx.array, records: Records
) -> tuple[mx.array, Records]:
    """Run T tokens of each row after ``state`` and ``records``.

    q_k: (rows, key heads, 2, T, Dk), queries, then keys; v: (rows, value heads, T, Dv); gates: log
    decay and beta, each (rows, value heads, T). All float32. Returns what is read, like ``v``, and
    the records with the tokens' own after them, all of which count.
    """
    log_decay, beta = gates
    rows, key_heads, _, time, key_dim = q_k.shape
    value_heads, value_dim = state.shape[1:3]
    count, repeats = records.count, value_heads // key_heads
    both, keys = q_k.reshape(rows, key_heads, 2 * time, key_dim), q_k[:, :, 1]

    log = mx.cumsum(log_decay, axis=-1)
    k, logs, left = keys, log, None
    if count:
        log, left = _since(log, records.last_log()[..., None])
        k = mx.concatenate([records.k, keys], axis=2)
        logs = mx.concatenate([records.log, log], axis=2)
    read = both @ state.reshape(rows, key_heads, repeats * value_dim, key_dim).swapaxes(-1, -2)
    read = read.reshape(rows, key_heads, 2, time, repeats, value_dim).transpose(0, 1, 4, 2, 3, 5)
    likeness = (both @ k.swapaxes(-1, -2)).reshape(rows, key_heads, 1, 2, time, -1)

    def by_head(array: mx.array) -> mx.array:
        return array.reshape(rows, key_heads, repeats, *array.shape[2:])

    now, then = by_head(log), by_head(logs)
    weights = _fade(
        likeness, now[:, :, :, None, :, None], then[:, :, :, None, None], _seen(records.valid, time)
    )
    weights = weights.reshape(rows, value_heads, 2, time, -1)
    strength = by_head(beta)[..., None]
    left = by_head(mx.exp(log) if left is None else left)[..., None]
    by_keys = [read[:, :, :, 1], left]
    if count:
        by_keys.append(by_head(weights[:, :, 1, :, :count] @ records.u))
    wanting, blocked = _correct(by_head(v), by_keys, strength, by_head(weights[:, :, 1, :, count:]))
    blocked = blocked.reshape(rows, value_heads, time, time)
    u = inverse(blocked) @ wanting.reshape(v.shape)
    if count:
        u = mx.concatenate([records.u, u], axis=2)
    output = _add_past(read[:, :, :, 0], left, by_head(weights[:, :, 0] @ u))
    valid = np.concatenate([records.valid, np.ones((rows, time), np.bool_)], axis=1)
    return output.reshape(v.shape), Records(k, u, logs, valid)


def _seen(valid: Bools, time: int) -> mx.array:
    """Which columns count for each query and key of a window: (rows or 1, 1, 1, 2, T, columns)."""
    rows, count = valid.shape
    if valid.all():
        return _all_seen(count, time)
    seen = np.empty((rows, 1, 1, 2, time, count + time), np.bool_)
    seen[..., :count] = valid[:, None, None, None, None]
    seen[..., count:] = _before(time)
    return mx.array(seen)


@cache
def _all_seen(count: int, time: int) -> mx.array:
    before = np.broadcast_to(_before(time), (1, 1, 1, 2, time, time))
    made = mx.array(np.pad(before, [(0, 0)] * 5 + [(count, 0)], constant_values=True))
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made


@cache
def _before(time: int) -> Bools:
    """Which tokens of the window come before: a query sees its own too, a key does not."""
    own = np.ones((time, time), np.bool_)
    return np.stack([np.tril(own), np.tril(own, -1)])


@partial(mx.compile, shapeless=True)
def _since(log: mx.array, last: mx.array) -> tuple[mx.array, mx.array]:
    total = log + last
    return total, mx.power(e, total)


@partial(mx.compile, shapeless=True)
def _fade(likeness: mx.array, now: mx.array, then: mx.array, seen: mx.array) -> mx.array:
    return mx.where(seen, likeness * mx.power(e, now - then), 0.0)


@partial(mx.compile, shapeless=True)
def _correct(
    v: mx.array, by_keys: list[mx.array], strength: mx.array, weights: mx.array
) -> tuple[mx.array, mx.array]:
    """``by_keys``: what they read of the state, what is left of it, and what of the records."""
    past = by_keys[0] * by_keys[1]
    for recorded in by_keys[2:]:
        past = past + recorded
    return strength * (v - past), strength * weights


@partial(mx.compile, shapeless=True)
def _add_past(by_q: mx.array, left: mx.array, recorded: mx.array) -> mx.array:
    return by_q * left + recorded
