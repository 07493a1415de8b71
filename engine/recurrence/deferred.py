"""The gated delta rule with a state that is written only now and then.

Since the state S was last written, tokens are *records*: key k[j], correction u[j] and the log
decay G[j] summed from S on. A window of T tokens reads S and the records once:

    p(x, t) = exp(G[t]) S x + sum over records j of exp(G[t] - G[j]) (k[j] . x) u[j]
    u[t] = beta[t] (v[t] - p(k[t], t) - sum over i < t of exp(G[t] - G[i]) (k[i] . k[t]) u[i])
    y[t] = p(q[t], t) + sum over i <= t of exp(G[t] - G[i]) (k[i] . q[t]) u[i]

and its k, u and G are the next records: a rejected draft is a record that does not count. Folding
is one product: S' = exp(G) S + sum over j of exp(G - G[j]) u[j] k[j]^T. (The delta rule's form in
``delta_rule``, unrolled over the records.) A token then costs one reading of S instead of a
reading, several passes and a writing.

Shapes: S (rows, value heads, Dv, Dk), k (rows, key heads, records, Dk), u (rows, value heads,
records, Dv), G (rows, value heads, records), all float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .chunked import LEAST_DECAY
from .triangle import inverse, masks

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Tokens since the state was written; in each row those count that are ``valid``."""

    k: mx.array
    u: mx.array
    log: mx.array
    valid: Bools  # (rows, records)

    @property
    def count(self) -> int:
        """Columns, valid or not."""
        return self.k.shape[2]

    def with_valid(self, valid: Bools) -> "Records":
        """The same records, of which others count."""
        return Records(self.k, self.u, self.log, valid)

    def then(self, later: "Records") -> "Records":
        """These records and ``later`` ones of the same rows."""
        if not self.count:
            return later
        return Records(
            mx.concatenate([self.k, later.k], axis=2),
            mx.concatenate([self.u, later.u], axis=2),
            mx.concatenate([self.log, later.log], axis=2),
            np.concatenate([self.valid, later.valid], axis=1),
        )

    def widened(self, count: int) -> "Records":
        """The same with ``count`` columns; those that are new do not count."""
        more = count - self.count
        if not more:
            return self

        def pad(array: mx.array) -> mx.array:
            return mx.pad(array, [(0, 0), (0, 0), (0, more), (0, 0)][: array.ndim])

        valid = np.pad(self.valid, [(0, 0), (0, more)])
        return Records(pad(self.k), pad(self.u), pad(self.log), valid)

    def rows(self, index: Sequence[int]) -> "Records":
        """The records of rows ``index``."""
        which = mx.array(list(index))
        k, u, log = (mx.take(array, which, axis=0) for array in (self.k, self.u, self.log))
        return Records(k, u, log, self.valid[list(index)])

    def last_log(self) -> mx.array:
        """G at each row's last valid record, 0 where it has none: (rows, value heads)."""
        if self.count and self.valid[:, -1].all():
            return self.log[..., -1]
        columns = np.arange(1, self.count + 1)
        last = (self.valid * columns).max(axis=1, initial=0)
        if last.all() and (last == last[0]).all():
            return self.log[..., int(last[0]) - 1]
        # sums of decays only fall: the last of those that count is the least
        return mx.where(mx.array(self.valid)[:, None], self.log, 0.0).min(axis=-1)

    def masked_log(self) -> mx.array:
        """G, infinite where a record does not count: exp(G[t] - G[j]) is 0 there."""
        if self.valid.all():
            return self.log
        return mx.where(mx.array(self.valid)[:, None], self.log, mx.inf)


def join(parts: Sequence[Records]) -> Records:
    """Records of other rows, one after the other."""
    if len(parts) == 1:
        return parts[0]
    wide = [part.widened(max(one.count for one in parts)) for part in parts]
    k, u, log = (
        mx.concatenate([getattr(part, name) for part in wide]) for name in ("k", "u", "log")
    )
    return Records(k, u, log, np.concatenate([part.valid for part in wide]))


def no_records(state: mx.array, key_heads: int) -> Records:
    """No records at all, for the rows of ``state``."""
    rows, value_heads, value_dim, key_dim = state.shape
    return Records(
        mx.zeros((rows, key_heads, 0, key_dim)),
        mx.zeros((rows, value_heads, 0, value_dim)),
        mx.zeros((rows, value_heads, 0)),
        np.zeros((rows, 0), np.bool_),
    )


def fold(state: mx.array, records: Records) -> mx.array:
    """The state after all valid records."""
    if not records.valid.any():
        return state
    last = records.last_log()
    left = mx.exp(last[..., None] - records.masked_log())
    repeats = state.shape[1] // records.k.shape[1]
    k = mx.repeat(records.k, repeats, axis=1) if repeats > 1 else records.k
    kept: mx.array = mx.exp(last)[..., None, None] * state
    return kept + (records.u * left[..., None]).swapaxes(-1, -2) @ k


def run(inputs: Sequence[mx.array], state: mx.array, records: Records) -> tuple[mx.array, Records]:
    """Run a window after ``state`` and ``records``.

    ``inputs`` as in ``delta_rule``. Returns outputs (rows, time, value heads, Dv) and the window's
    records, all of them valid.
    """
    q, k, v, g, beta = inputs
    rows, time, key_heads, _ = k.shape
    value_heads, value_dim = v.shape[2:]
    log = mx.log(mx.maximum(g.astype(mx.float32), LEAST_DECAY)).swapaxes(1, 2)
    if time > 1:
        log = mx.cumsum(log, axis=-1)
    if records.count:
        log = log + records.last_log()[..., None]  # (rows, value heads, time)
    both = mx.concatenate([k, q], axis=1).astype(mx.float32).swapaxes(1, 2)  # keys, then queries
    repeats = value_heads // key_heads

    def spread(array: mx.array) -> mx.array:
        return mx.repeat(array, repeats, axis=1) if repeats > 1 else array

    # every key head reads the states of its value heads in one product
    stacked = state.reshape(rows, key_heads, repeats * value_dim, -1)
    read = (both @ stacked.swapaxes(-1, -2)).reshape(rows, key_heads, 2, time, repeats, value_dim)
    read = read.transpose(0, 1, 4, 2, 3, 5).reshape(rows, value_heads, 2, time, value_dim)
    past = mx.exp(log)[:, :, None, :, None] * read
    if records.count:
        left = mx.exp(log[..., :, None] - records.masked_log()[..., None, :])
        likeness = spread(both @ records.k.swapaxes(-1, -2))  # (rows, heads, 2 time, records)
        weights = likeness.reshape(rows, value_heads, 2, time, -1) * left[:, :, None]
        weights = weights.reshape(rows, value_heads, 2 * time, -1)
        past = past + (weights @ records.u).reshape(past.shape)
    strength = beta.astype(mx.float32).swapaxes(1, 2)[..., None]
    u = strength * (v.astype(mx.float32).swapaxes(1, 2) - past[:, :, 0])
    keys = both[:, :, :time]
    if time == 1:
        outputs = past[:, :, 1] + spread((keys * both[:, :, 1:]).sum(-1, keepdims=True)) * u
    else:
        lower, strictly = masks(time)
        left = mx.exp(mx.where(lower, log[..., :, None] - log[..., None, :], -mx.inf))
        likeness = spread(both @ keys.swapaxes(-1, -2))
        blocked = mx.where(strictly, strength * likeness[:, :, :time] * left, 0.0)
        u = inverse(blocked) @ u
        outputs = past[:, :, 1] + (likeness[:, :, time:] * left) @ u
    made = Records(keys, u, log, np.ones((rows, time), np.bool_))
    return outputs.swapaxes(1, 2).astype(v.dtype), made
