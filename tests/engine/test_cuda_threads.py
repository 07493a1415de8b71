"""What the CUDA kernels of a process share, used by engines in threads of their own."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from mlx.utils import tree_flatten

from engine.cuda import chains, product

KEPT = {"constants": product._constants, "gated": product._gated, "nothing": chains._nothing}


@pytest.mark.parametrize("kept", KEPT)
def test_arrays_that_one_thread_has_made_serve_another(kept: str) -> None:
    make: Any = KEPT[kept]
    make.cache_clear()
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(make).result()

    arrays = [array for _, array in tree_flatten(made)] if isinstance(made, tuple) else [made]
    for array in arrays:
        assert not (array + array).any().item()


class Owner:
    pass


class Meeting(weakref.WeakSet):
    """Whoever asks whether it is empty waits for somebody else who asks, or for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2)

    def __bool__(self) -> bool:
        found = len(self) > 0
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.2)
        return found


def test_of_two_that_claim_chains_at_once_one_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_owners", Meeting())
    owners = [Owner(), Owner()]
    claim: Callable[[Any], bool] = chains.claim
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(claim, owners))

    assert sorted(found) == [False, True]
