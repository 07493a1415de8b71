from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Service


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    # a short name: the path of a Unix socket has 107 bytes at most
    folder: Path = tmp_path_factory.mktemp("w")
    service = Service(folder)
    yield service
    service.close()
