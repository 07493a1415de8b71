"""A broker, a worker with a fake engine and a client, over real sockets in this process."""

from collections.abc import Iterator

import pytest
from wire_in_process import InProcess

from ipc.admission import AdmissionLimits, Amount
from ipc.client import Client
from ipc.fake_engine import FakeEngine


@pytest.fixture
def running() -> Iterator[InProcess]:
    running = InProcess()
    running.worker(step=0.002)
    yield running
    running.close()


@pytest.fixture
def narrow() -> Iterator[InProcess]:
    """A broker that holds one request at a time."""
    one = Amount(1, 10**9, 10**9)
    narrow = InProcess(limits=AdmissionLimits(one, one))
    narrow.worker(step=0.002)
    yield narrow
    narrow.close()


@pytest.fixture
def client(running: InProcess) -> Iterator[Client]:
    with Client(running.address) as client:
        yield client


@pytest.fixture
def engine(running: InProcess) -> FakeEngine:
    return running.engines[0]
