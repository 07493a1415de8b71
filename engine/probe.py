"""Tries a model out at load: does it run over pages as it runs over mlx-lm's own caches?

Two short made-up prompts run in chunks, ragged, side by side, and are compared with mlx-lm's
forward of each alone. The pages and slots used are written over later like any stale ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from scheduler.round import Row

from .backend import Backend
from .batch import Batch, Window
from .errors import ModelError
from .forward import Forward
from .store import Method, Store
from .view import BatchView

LENGTHS = (5, 21, 38)
CHUNK = 16  # at least, or no row would be padded before its last token
FURTHER = 2.0  # times what mlx-lm's own two ways lie apart, ours may lie from one of them


class Probe:
    """Runs made-up prompts through one model's memory."""

    def __init__(
        self, forward: Forward, make_store: Callable[[int, int], Store], block_size: int, vocab: int
    ) -> None:
        self.forward = forward
        self.block_size = block_size
        self.prompts = [
            [(7 * number + 31 * place + 3) % vocab for place in range(length)]
            for number, length in enumerate(LENGTHS)
        ]
        self.table_length = -(-max(LENGTHS) // block_size)
        self.num_blocks = 1 + len(LENGTHS) * self.table_length
        self.num_slots = 1 + len(LENGTHS)
        self.store = make_store(self.num_blocks, self.num_slots)

    def run(self, chunk: int, members: Sequence[int]) -> list[mx.array]:
        """Run the prompts ``members`` together in chunks; return each one's last logits."""
        done = dict.fromkeys(members, 0)
        last: dict[int, mx.array] = {}
        while rows := [
            self._row(number, done[number], chunk)
            for number in members
            if done[number] < len(self.prompts[number])
        ]:
            for windows in self.store.divide([Window(row) for row in rows]):
                last |= self._run_batch(Batch(windows, self.block_size))
            for row in rows:
                done[row.seq_id] = row.certain_end
        return [last[number] for number in members]

    def _run_batch(self, batch: Batch) -> dict[int, mx.array]:
        view = BatchView(batch)
        caches = self.store.open(view)
        hidden = self.forward.hidden(batch.tokens(), caches)
        ends = [window.length - 1 for window in batch.windows]
        logits = self.forward.logits(hidden[mx.arange(batch.size), mx.array(ends)])
        mx.eval(logits, self.store.pending(caches))
        self.store.store(view, caches)
        return {window.row.seq_id: logits[place] for place, window in enumerate(batch.windows)}

    def reference(self, number: int) -> mx.array:
        """mlx-lm's own last logits of one prompt, over its own caches."""
        model = self.forward.model
        caches = make_prompt_cache(model)
        logits: mx.array = model(mx.array([self.prompts[number]]), cache=caches)[0, -1]
        return logits

    def spread(self, number: int) -> float:
        """How far mlx-lm's own last logits of one prompt lie apart, read at once and by token."""
        model, prompt = self.forward.model, self.prompts[number]
        caches = make_prompt_cache(model)
        for token in prompt:
            logits = model(mx.array([[token]]), cache=caches)
        return _largest(logits[0, -1] - self.reference(number))

    def _row(self, number: int, start: int, chunk: int) -> Row:
        """A chunk of a prompt; its last token comes alone, and shows what padding did before."""
        prompt = self.prompts[number]
        end = min(start + chunk, max(len(prompt) - 1, start + 1))
        tokens = tuple(prompt[start:end])
        first = 1 + number * self.table_length
        blocks = tuple(range(first, first + -(-(start + len(tokens)) // self.block_size)))
        return Row(number, tokens, start, blocks, slot=1 + number)


def find_method(make_probe: Callable[[Method], Probe], method: Method, dtype: mx.Dtype) -> Probe:
    """Return a probe of the first method by which the model agrees with mlx-lm's own forward.

    Raises ModelError, with the cause, if there is none.
    """
    probe = make_probe(method)
    try:
        check_model(probe, dtype)
    except (TypeError, AttributeError) as error:
        if method.gathers:
            raise ModelError(f"this model does not run over pages: {error}") from error
        return find_method(make_probe, replace(method, gathers=True), dtype)
    except ModelError:
        if not method.pads:
            raise
        return find_method(make_probe, replace(method, pads=False), dtype)
    return probe


def check_model(probe: Probe, dtype: mx.Dtype) -> None:
    """Raise ModelError unless the model agrees, up to rounding, with mlx-lm's own forward.

    A model whose rounding goes far, as random weights do, says so by itself: mlx-lm's own two ways
    of reading a prompt then lie as far apart, or half as far where ours is the unluckier one.
    """
    limit = 1e-3 if dtype == mx.float32 else 0.1
    together = probe.run(max(2 * probe.block_size, CHUNK), range(len(LENGTHS)))
    for number, logits in enumerate(together):
        reference = probe.reference(number)
        scale, difference = _largest(reference), _largest(logits - reference)
        if difference <= limit * max(scale, 1.0):
            continue
        if not difference <= FURTHER * probe.spread(number):
            raise ModelError(
                "this model does not run over pages as it does over mlx-lm's own caches: logits "
                f"of a {LENGTHS[number]}-token prompt differ by {difference:.3g} (of {scale:.3g})"
            )


def check_exact(probe: Probe, dtype: mx.Dtype, backend: Backend, blas: str) -> None:
    """Raise ModelError, with the cause, unless rows come out bitwise whatever runs beside them."""
    wanted = str(backend.exact_dtype).removeprefix("mlx.core.")
    if dtype != backend.exact_dtype:
        raise ModelError(f"exact=True needs {wanted} weights, not {dtype}: pass dtype='{wanted}'")
    cause = backend.why_not_exact(probe.forward.model)
    if cause is not None:
        raise ModelError(f"exact=True cannot hold here: no kernel takes {cause}")
    block = probe.block_size
    whole = probe.run(max(LENGTHS), range(len(LENGTHS)))
    for number in range(len(LENGTHS)):
        alone = [
            (f"in chunks of {chunk}", probe.run(chunk, [number])[0])
            for chunk in (max(LENGTHS), block, 1)
        ]
        if type(backend) is Backend:  # made of the same operations as mlx-lm
            alone.append(("through mlx-lm's own caches", probe.reference(number)))
        for how, logits in alone:
            if not mx.array_equal(logits, whole[number]):
                difference = _largest(logits - whole[number])
                products = blas if type(backend) is Backend else f"backend {backend.name}"
                raise ModelError(
                    f"exact=True cannot hold here: with {products}, logits of a prompt alone {how} "
                    f"differ by {difference:.3g} from those in a batch. On a CPU the reference "
                    "BLAS is exact, and so is OCTAVO_BLAS=exact, a fast one: set it before starting"
                )


def _largest(array: mx.array) -> float:
    """The largest magnitude in ``array``."""
    return float(np.abs(np.array(array.astype(mx.float32))).max())
