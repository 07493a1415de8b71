"""Requests made one after another leave together."""

from collections.abc import Iterator

import pytest

from ipc.burst import Burst
from ipc.client import Client


def test_a_burst_ends_with_so_many_requests_or_after_a_moment() -> None:
    now = [0.0]
    burst = Burst(lambda: now[0])
    assert [burst.is_over() for _ in range(128)].count(True) == 2
    assert not burst.is_over()
    now[0] = 1.0
    assert burst.is_over()
    assert not burst.is_over()  # the next one begins now


def test_gathering_wakes_the_clients_thread_for_many_requests_at_a_time() -> None:
    rings: list[None] = []
    before: list[int] = []

    def prompts() -> Iterator[str]:
        yield from ["hi"] * 200
        before.append(len(rings))
        raise KeyError

    with Client("tcp://127.0.0.1:9") as client:
        bell = client._connection._bell
        ring = bell.ring
        bell.ring = lambda: (rings.append(None), ring())[1]  # type: ignore[method-assign]
        with pytest.raises(KeyError):
            client.gather(prompts())
    assert 2 <= before[0] < 150  # about four; each alone would have been 400
