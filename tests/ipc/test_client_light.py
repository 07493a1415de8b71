"""The client installs light: it needs msgpack, pyzmq and the standard library, nothing else."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import importlib.abc, sys, threading

class Barrier(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        allowed = sys.stdlib_module_names | {"ipc", "zmq", "msgpack", "_cffi_backend", "cffi"}
        if top not in allowed:
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Barrier())
from ipc.client import AsyncClient, Client, RequestFailedError

client = Client("tcp://127.0.0.1:9", patience=0.3)
try:
    client.ask("hello", {"max_tokens": 3, "stop_token_ids": [1]})
except RequestFailedError as error:
    print(error.code)
client.close()
import asyncio

async def ask():
    async with AsyncClient("tcp://127.0.0.1:9", patience=0.3) as client:
        try:
            await client.ask([1, 2, 3])
        except RequestFailedError as error:
            print(error.code)

asyncio.run(ask())
"""


def test_the_client_works_where_nothing_but_msgpack_and_pyzmq_can_be_imported() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert told.stdout.split() == ["unreachable", "unreachable"], told.stderr


def test_nothing_that_carries_messages_can_run_what_it_receives() -> None:
    for path in (ROOT / "ipc").rglob("*.py"):
        text = path.read_text()
        for module in ("pickle", "marshal", "shelve", "dill", "cloudpickle"):
            assert f"import {module}" not in text, path
        for call in ("eval(", "exec(", "recv_pyobj", "send_pyobj"):
            assert call not in text.replace("retrieval(", ""), path
