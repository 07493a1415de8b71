"""The deferred form for windows of one token, in few operations: what decoding runs.

The formulas are those of ``deferred``; gates and lengths are taken in on the way. Arithmetic on
single elements is compiled, so that broadcasting costs no operation of its own.
"""

from functools import cache, partial
from math import e, log

import mlx.core as mx
import numpy as np

from .chunked import LEAST_DECAY
from .deferred import Records

LEAST_LOG = log(LEAST_DECAY)


def read_one(
    q_k: mx.array, v: mx.array, gates: tuple[mx.array, mx.array], state: mx.array, records: Records
) -> tuple[mx.array, Records]:
    """Run one token of each row after ``state`` and ``records``.

    q_k: (rows, key heads, 2, Dk), the query, then the key; v: (rows, value heads, 1, Dv); gates:
    log decay and beta, each (rows, value heads, 1). All float32. Returns what is read, like ``v``,
    and the token's records.
    """
    log_decay, beta = gates
    rows, key_heads, _, key_dim = q_k.shape
    value_heads, value_dim = state.shape[1:3]
    repeats = value_heads // key_heads
    read = q_k @ state.reshape(rows, key_heads, repeats * value_dim, key_dim).swapaxes(-1, -2)
    alike = q_k @ q_k.swapaxes(-1, -2)
    if repeats > 1:
        read = read.reshape(rows, key_heads, 2, repeats, value_dim).swapaxes(2, 3)
        read = read.reshape(rows, value_heads, 2, value_dim)
        alike = mx.repeat(alike, repeats, axis=1)
    if records.count:
        log_decay, left = _since(log_decay, records.last_log()[..., None])
        likeness = q_k @ records.k.swapaxes(-1, -2)
        if repeats > 1:
            likeness = mx.repeat(likeness, repeats, axis=1)
        weights = _fade(likeness, log_decay[..., None], records.masked_log()[:, :, None])
        read = _add_past(read, left[..., None], weights @ records.u)
    else:
        read = read * mx.exp(log_decay)[..., None]
    by_q, by_k = read[:, :, :1], read[:, :, 1:]
    output, u = _correct(by_q, by_k, v, beta[..., None], alike[:, :, :1, 1:])
    made = Records(q_k[:, :, 1:], u, log_decay, np.ones((rows, 1), np.bool_))
    return output, made


def unit_q_k(q_k: mx.array, scale: float, eps: float) -> mx.array:
    """Give queries, (rows, heads, 0, ..., dim), length ``scale`` and keys, 1 instead of 0, 1."""
    squares = mx.square(q_k).sum(axis=-1, keepdims=True)
    unit: mx.array = _unit(q_k, squares, _scales(scale, q_k.ndim), mx.array(eps))
    return unit


def log_gates(
    decay: mx.array, bias: mx.array, a: mx.array, b: mx.array
) -> tuple[mx.array, mx.array]:
    """Log decay and beta of tokens, out of what is projected: a and b (..., value heads).

    decay: exp(A_log), bias: dt_bias, both (value heads,); see mlx_lm's ``compute_g``.
    """
    gates: tuple[mx.array, mx.array] = _gates(decay, bias, a, b)
    return gates


@cache
def _scales(scale: float, ndim: int) -> mx.array:
    made = mx.array([scale, 1.0]).reshape(2, *(1,) * (ndim - 3))
    mx.eval(made)  # what is not evaluated belongs to the thread that made it
    return made


@partial(mx.compile, shapeless=True)
def _unit(q_k: mx.array, squares: mx.array, scales: mx.array, eps: mx.array) -> mx.array:
    return q_k * (mx.rsqrt(squares + eps) * scales)


@partial(mx.compile, shapeless=True)
def _gates(decay: mx.array, bias: mx.array, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
    log_decay = -decay * mx.logaddexp(a + bias, 0.0)
    return mx.maximum(log_decay, LEAST_LOG), 1 / (1 + mx.power(e, -b))


@partial(mx.compile, shapeless=True)
def _since(log_decay: mx.array, last: mx.array) -> tuple[mx.array, mx.array]:
    total = log_decay + last
    return total, mx.exp(total)


@partial(mx.compile, shapeless=True)
def _fade(likeness: mx.array, now: mx.array, then: mx.array) -> mx.array:
    return likeness * mx.power(e, now - then)


@partial(mx.compile, shapeless=True)
def _add_past(read: mx.array, left: mx.array, recorded: mx.array) -> mx.array:
    return read * left + recorded


@partial(mx.compile, shapeless=True)
def _correct(
    by_q: mx.array, by_k: mx.array, v: mx.array, beta: mx.array, alike: mx.array
) -> tuple[mx.array, mx.array]:
    u = beta * (v - by_k)
    return by_q + alike * u, u
