"""Runs windows of committed tokens for what a model keeps of them; nothing is picked."""

from collections.abc import Sequence

import mlx.core as mx

from .batch import Batch, Window
from .forward import Forward
from .store import Store
from .view import BatchView


def run_certain(forward: Forward, store: Store, windows: Sequence[Window], block_size: int) -> None:
    """Run ``windows``, in as many batches as they need, and store what they leave.

    Of a window with drafts the state written is the one before them, and their inputs are recorded.
    """
    for group in store.divide(windows) if windows else ():
        view = BatchView(Batch(group, block_size))
        caches = store.open(view)
        forward.hidden(view.tokens, caches)
        mx.eval(store.pending(caches))
        store.store(view, caches)
