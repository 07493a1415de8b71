"""Rows that a deferred layer has opened for one batch, with what has to be stored of them."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..batch import Int32s
from ..recurrence.chunked import by_chunks
from ..recurrence.deferred import Bools, Records, fold, no_records, run
from ..recurrence.few_tokens import read_few
from ..recurrence.history import History
from ..recurrence.one_token import log_gates, read_one, unit_q_k
from ..recurrence.rows import RecurrentRows
from ..recurrence.windows import L2_EPS, DeltaWindow
from .activation import silu
from .group import Group
from .norms import inverse_rms

if TYPE_CHECKING:
    from .deferred_layer import DeferredLayer

FOLD_AT = 16  # records: a fold costs about as much as reading that many

Writes = list[tuple[str, list[int], mx.array]]


class OpenRows(DeltaWindow):
    """Rows read from slots or a group, with what has to be stored."""

    def __init__(self, layer: "DeferredLayer", rows: RecurrentRows) -> None:
        self.layer = layer
        self.rows = rows
        self.past = History(layer.slots, rows, layer.taps)
        self.history = self.past.before
        self.state, self.records = layer.take(rows)
        self.captured: Writes = self._captured_in_fold()

    def mix(self, module: Any, inputs: mx.array) -> mx.array:
        """By taps: several times faster than a grouped convolution on a CPU."""
        width = inputs.shape[1] - self.layer.taps
        weights = self.layer.tap_weights
        mixed = _sum_taps([inputs[:, tap : tap + width] for tap in range(len(weights))], weights)
        return silu(mixed + module.conv1d.bias if "bias" in module.conv1d else mixed)

    def normalize(self, q: mx.array, k: mx.array, scale: float) -> tuple[mx.array, mx.array]:
        """In few passes."""
        eps = L2_EPS / q.shape[-1]  # of the mean of squares
        return q * inverse_rms(q, eps, scale / q.shape[-1] ** 0.5), k * inverse_rms(
            k, eps, 1 / k.shape[-1] ** 0.5
        )

    def pending(self) -> list[mx.array]:
        """Arrays to evaluate before ``store``."""
        raise NotImplementedError

    def store(self) -> None:
        """Keep what the round may keep."""
        raise NotImplementedError

    def _captured_in_fold(self) -> Writes:
        """States and histories of captures among the tokens that the last round's verdict added."""
        captured: Writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            if is_fold:
                assert self.rows.fold is not None
                tokens = int(self.rows.fold.stops[stop][number])
                short = int(self.rows.folds[number]) - tokens
                captured.append(("state", [slot], self._state_before(number, short)))
                history = self.past.at(self.history, number, tokens, in_fold=True)
                captured.append(("history", [slot], history))
        return captured

    def _state_before(self, number: int, short: int) -> mx.array:
        """Row ``number``'s state with all records but the last ``short``, (1, ...)."""
        mine = self.records.rows([number])
        places = np.cumsum(mine.valid, axis=1)
        valid = mine.valid & (places <= places[:, -1:] - short)
        return fold(self.state[number : number + 1], mine.with_valid(valid))

    def _history_at(self, number: int, stop: int) -> tuple[int, mx.array]:
        """Tokens from the window's start to a stop of row ``number``, and the history there."""
        assert self.conv_input is not None
        tokens = int(self.rows.window.stops[stop][number])
        return tokens, self.past.at(self.conv_input, number, tokens, in_fold=False)


@partial(mx.compile, shapeless=True)
def _sum_taps(taps: list[mx.array], weights: list[mx.array]) -> mx.array:
    mixed = taps[0] * weights[0]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        mixed = mixed + tap * weight
    return mixed


class OpenRecords(OpenRows):
    """Windows of a few tokens, which become records."""

    def __init__(self, layer: "DeferredLayer", rows: RecurrentRows) -> None:
        super().__init__(layer, rows)
        if self.records.count >= FOLD_AT:
            self.state = fold(self.state, self.records)
            self.records = no_records(self.state, layer.key_heads)
        # once the module has run: with the window's tokens, all of which count
        self.after: Records | None = None
        self._kept: tuple[Group, Writes] | None = None

    def between(self, module: Any, mixed: mx.array, b: mx.array, a: mx.array) -> mx.array:
        """Float32 tokens in few operations."""
        if any(x.dtype != mx.float32 for x in (mixed, a, b)):
            return super().between(module, mixed, b, a)
        rows, width, _ = mixed.shape
        key_dim, heads, size = 2 * module.key_dim, module.num_k_heads, module.head_k_dim
        v = mixed[:, :, key_dim:].reshape(rows, width, module.num_v_heads, -1).swapaxes(1, 2)
        log_decay, beta = log_gates(self.layer.decay, module.dt_bias, a, b)
        gates = log_decay.swapaxes(1, 2), beta.swapaxes(1, 2)
        if width == 1:
            q_k = mixed[:, :, :key_dim].reshape(rows, 2, heads, size).swapaxes(1, 2)
            q_k = unit_q_k(q_k, size**-0.5, L2_EPS)
            read, made = read_one(q_k, v, gates, self.state, self.records)
            self.after = self.records.then(made)
        else:
            q_k = mixed[:, :, :key_dim].reshape(rows, width, 2, heads, size)
            q_k = unit_q_k(q_k.transpose(0, 3, 2, 1, 4), size**-0.5, L2_EPS)
            read, self.after = read_few(q_k, v, gates, self.state, self.records)
        return read.swapaxes(1, 2)

    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Read the state and all records; (rows, width, value heads, value dim)."""
        read, made = run(inputs, self.state, self.records)
        self.after = self.records.then(made)
        return read

    def pending(self) -> list[mx.array]:
        """The group's arrays, and what is written to slots."""
        group, writes = self._keep()
        return group.arrays + [array for _, _, array in writes]

    def store(self) -> None:
        """Make the rows a group, and write their captures."""
        layer, slots = self.layer, self.rows.slots
        group, writes = self._keep()
        layer.leave([*slots, *(slot for _, targets, _ in writes for slot in targets)])
        layer.groups.append(group)
        for name, targets, array in writes:
            layer.slots.write(name, targets, array, stays=targets is slots)

    def _keep(self) -> tuple[Group, Writes]:
        if self._kept is None:
            certain = self.rows.window.stops[self.rows.certain_stop]
            group = Group(
                self.rows.slots,
                self.state,
                self._after(certain),
                self.records.count + certain,
            )
            assert self.conv_input is not None
            history = self.past.after(self.conv_input)
            writes = [("history", self.rows.slots, history), *self.captured, *self._captured()]
            self._kept = group, writes
        return self._kept

    def _after(self, ends: Int32s) -> Records:
        """The records with each row's first tokens of the window, so many of them."""
        assert self.after is not None
        made: Bools = np.arange(self.after.count - self.records.count) < ends[:, None]
        return self.after.with_valid(np.concatenate([self.records.valid, made], axis=1))

    def _captured(self) -> Writes:
        captured: Writes = []
        for number, is_fold, stop, slot in self.rows.captures:
            if not is_fold:
                tokens, history = self._history_at(number, stop)
                ends = np.full(len(self.rows.slots), tokens, np.int32)
                records = self._after(ends).rows([number])
                captured.append(("state", [slot], fold(self.state[number : number + 1], records)))
                captured.append(("history", [slot], history))
        return captured


class OpenChunks(OpenRows):
    """Prompt chunks, which are written to the states at once."""

    def __init__(self, layer: "DeferredLayer", rows: RecurrentRows) -> None:
        super().__init__(layer, rows)
        self.states: list[mx.array] = []  # at every stop of the window
        self._writes: Writes | None = None

    def recur(self, inputs: Sequence[mx.array]) -> mx.array:
        """Run the segments of the window; (rows, width, value heads, value dim)."""
        start = fold(self.state, self.records)
        read, self.states = self.rows.window.run(by_chunks, inputs, start)
        return read

    def pending(self) -> list[mx.array]:
        """What is written to slots."""
        return [array for _, _, array in self._keep()]

    def store(self) -> None:
        """Write states, histories and captures."""
        writes = self._keep()
        self.layer.leave([slot for _, targets, _ in writes for slot in targets])
        for name, targets, array in writes:
            self.layer.slots.write(name, targets, array)

    def _keep(self) -> Writes:
        if self._writes is None:
            assert self.conv_input is not None
            slots = self.rows.slots
            writes = [("state", slots, self.states[-1])]
            writes.append(("history", slots, self.past.after(self.conv_input)))
            writes += self.captured
            for number, is_fold, stop, slot in self.rows.captures:
                if not is_fold:
                    _, history = self._history_at(number, stop)
                    writes.append(("state", [slot], self.states[stop][number : number + 1]))
                    writes.append(("history", [slot], history))
            self._writes = writes
        return self._writes
