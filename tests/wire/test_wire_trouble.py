"""Real sockets whose network delays, throttles and cuts."""

import time
from collections.abc import Iterator

import pytest
from processes import Service, wait_until
from trouble_proxy import TroubleProxy

from ipc.client import Client
from ipc.fake_engine import fake_tokens

WORDS = [f"code word {number}" for number in range(24)]


@pytest.fixture
def proxies(service: Service) -> Iterator[tuple[TroubleProxy, TroubleProxy]]:
    """A broker on TCP with a proxy on each side, and a worker behind the second."""
    service.frontend = service.backend = "tcp://127.0.0.1:*"
    service.heartbeat = 1.5  # trouble is the network's part, not that of a busy machine
    listening = service.start_broker().first_line()
    front, back = TroubleProxy(listening["clients"][0], 1), TroubleProxy(listening["workers"][0], 2)
    service.frontend, service.backend = front.address, back.address
    service.start_worker("fake:step=0.004,rows=8")
    yield front, back
    for client in service.clients:
        client.close()
    front.close()
    back.close()


def check(client: Client, *, tokens: int, disturb: object = None) -> None:
    handles = [client.submit(word, {"max_tokens": tokens, "seed": 1}) for word in WORDS]
    for handle in handles:
        handle.read_all()
    if callable(disturb):
        disturb()
    for word, handle in zip(WORDS, handles, strict=True):
        answer = handle.result(40)
        assert answer.token_ids == list(fake_tokens(word.encode(), 1, 0, 0, tokens))


def test_a_slow_and_jumpy_network_loses_nothing(
    service: Service, proxies: tuple[TroubleProxy, TroubleProxy]
) -> None:
    for proxy in proxies:
        proxy.delay, proxy.bytes_per_second = 0.02, 200_000.0
    check(service.client(), tokens=60)


def test_connections_that_are_cut_lose_and_double_nothing(
    service: Service, proxies: tuple[TroubleProxy, TroubleProxy]
) -> None:
    front, back = proxies

    def cut_often() -> None:
        for number in range(6):
            time.sleep(0.35)
            proxy = (front, back)[number % 2]
            before = proxy.connections
            proxy.cut()
            wait_until(lambda p=proxy, n=before: p.connections > n, why="it connects again")

    check(service.client(), tokens=200, disturb=cut_often)
    assert front.connections >= 3
    assert back.connections >= 3
    service.wait_until_idle()
