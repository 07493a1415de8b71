"""Runs hand-made rows through an executor: several sequences in batches of any composition.

Each sequence has blocks scattered over the pages and a slot of its own, both full of what somebody
left there, and may be stepped by any number of tokens and drafts beside any others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from engine.attention.paged import bind_to_pages
from engine.batch import Batch, Window
from engine.build import build_parts
from engine.executor import Executor
from engine.forward import Forward
from engine.loading import LoadedModel
from engine.options import EngineOptions
from engine.recurrence.forms import LOOP
from engine.registry import inspect_layers
from engine.store import Method, Store, build_store
from engine.voice import Wanted
from scheduler.round import Capture, Row

BLOCK_SIZE = 16
MOST_BLOCKS = 8
NUM_SPARE_SLOTS = 6


class ByHand:
    """Sequences 0 .. num_rows - 1 over one executor; sequence n runs in slot num_rows - n."""

    def __init__(self, executor: Executor, num_rows: int, *, seed: int = 0) -> None:
        self.executor = executor
        random = np.random.default_rng(seed)
        tables = 1 + random.permutation(num_rows * MOST_BLOCKS).reshape(num_rows, MOST_BLOCKS)
        self.tables = [tuple(int(block) for block in table) for table in tables]
        self.slots = [num_rows - number for number in range(num_rows)]
        self.spare_slots = [num_rows + 1 + number for number in range(NUM_SPARE_SLOTS)]
        self.computed = [0] * num_rows
        self.folds = [0] * num_rows
        for layer in self.store.layers:  # what no model would write, so that reading it shows
            for array in layer.arrays:
                array[:] = 7.5
            mx.eval(layer.arrays)

    @classmethod
    def over(cls, loaded: LoadedModel, num_rows: int, **options: Any) -> "ByHand":
        """Rows over a loaded model, built as an engine builds it."""
        num_blocks = 1 + num_rows * MOST_BLOCKS
        sizes = {"max_rows": num_rows + NUM_SPARE_SLOTS, "num_blocks": num_blocks}
        return cls(build_parts(loaded, EngineOptions(**sizes, **options)).executor, num_rows)

    @classmethod
    def drafting(cls, model: Any, num_rows: int, max_drafts: int) -> "ByHand":
        """Rows over a model whose windows may hold drafts, in the loop form."""
        specs = inspect_layers(model)
        bind_to_pages(model)
        store = build_store(
            specs,
            num_blocks=1 + num_rows * MOST_BLOCKS,
            block_size=BLOCK_SIZE,
            num_slots=1 + num_rows + NUM_SPARE_SLOTS,
            max_drafts=max_drafts,
            dtype=mx.float32,
            form=LOOP,
            method=Method(),
        )
        return cls(Executor(Forward(model), store, BLOCK_SIZE), num_rows)

    @property
    def store(self) -> Store:
        """The memory of the model."""
        return self.executor.store

    def run(
        self,
        windows: Mapping[int, Sequence[int]],
        *,
        drafts: Mapping[int, Sequence[int]] | None = None,
        captures: Mapping[int, Sequence[Capture]] | None = None,
    ) -> dict[int, np.ndarray]:
        """Run the sequences' certain tokens and drafts together.

        Returns each one's logits after the last certain token and after every draft, (1 + drafts,
        vocabulary). The sequences then stand at their certain ends; see ``accept``.
        """
        drafts, captures = drafts or {}, captures or {}
        batch = [
            Window(
                self._row(number, tokens, len(drafts.get(number, ())), captures.get(number, ())),
                tuple(drafts.get(number, ())),
            )
            for number, tokens in windows.items()
        ]
        seen: dict[int, list[np.ndarray]] = {}

        def pick(wanted: Sequence[Wanted], logits: mx.array) -> list[int]:
            for want, line in zip(wanted, np.array(logits), strict=True):
                seen.setdefault(want.window.row.seq_id, []).append(line)
            return [0] * len(wanted)

        for group in self.store.divide(batch):
            self.executor._run_batch(Batch(group, BLOCK_SIZE), pick)
        for number, tokens in windows.items():
            self.computed[number] += len(tokens)
            self.folds[number] = 0
        return {number: np.stack(lines) for number, lines in seen.items()}

    def accept(self, number: int, count: int) -> None:
        """Let a sequence keep the first ``count`` drafts of its last window."""
        self.computed[number] += count
        self.folds[number] = count

    def _row(
        self, number: int, tokens: Sequence[int], num_drafts: int, captures: Sequence[Capture]
    ) -> Row:
        start = self.computed[number]
        used = -(-(start + len(tokens) + num_drafts) // BLOCK_SIZE)
        return Row(
            number,
            tuple(tokens),
            start,
            self.tables[number][:used],
            slot=self.slots[number],
            fold=self.folds[number],
            num_drafts=num_drafts,
            captures=tuple(captures),
        )
