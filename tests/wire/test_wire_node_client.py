"""The protocol page is enough for a client in another language: here Node.js, no packages."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import Service

from ipc.fake_engine import fake_text, fake_tokens
from ipc.token_ids import pack_ids

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


@pytest.fixture
def tcp_service(service: Service) -> Service:
    service.frontend = "tcp://127.0.0.1:*"
    service.frontend = service.start_broker().first_line()["clients"][0]
    service.start_worker()
    service.client()
    service.wait_for_workers(1)
    return service


def ask(service: Service, prompt: object, **params: object) -> dict[str, Any]:
    assert NODE is not None
    host, port = service.frontend.removeprefix("tcp://").split(":")
    question = json.dumps({"prompt": prompt, "params": params})
    script = str(Path(__file__).with_name("client.mjs"))
    told = subprocess.run(
        [NODE, script, host, port, question], capture_output=True, text=True, timeout=90, check=True
    )
    answer: dict[str, Any] = json.loads(told.stdout)
    return answer


def test_a_client_in_nodejs_gets_its_answers(tcp_service: Service) -> None:
    answer = ask(tcp_service, "grüße", max_tokens=50, seed=7)
    expected = list(fake_tokens("grüße".encode(), 7, 0, 0, 50))
    assert answer["ids"] == expected  # more than its window: its credit works
    assert answer["text"] == fake_text(expected)
    assert (answer["accepted"], answer["reason"], answer["seed"]) == (True, "length", 7)
    assert answer["seqs"] == list(range(len(answer["seqs"])))

    ids = [1, 70_000, 2**32 - 1]
    answer = ask(tcp_service, ids, max_tokens=3, seed=1)
    assert answer["ids"] == list(fake_tokens(pack_ids(ids), 1, 0, 0, 3))
    tcp_service.wait_until_idle()


def test_a_client_in_nodejs_learns_what_was_wrong(tcp_service: Service) -> None:
    answer = ask(tcp_service, "hi", temprature=1)
    assert (answer["error"], answer["retryable"]) == ("bad_request", False)
    assert "did you mean 'temperature'?" in answer["message"]
