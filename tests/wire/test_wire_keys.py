"""CURVE: who may connect, and as whom."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import ROOT, Process, Service

from ipc.client import Client, RequestFailedError
from ipc.keys import AllowList, KeyFileError, load_pair, load_public, new_key


@dataclass
class Secured:
    service: Service
    keys: Path
    allowed: Path
    broker: Process

    def client(self, name: str) -> Client:
        key, server = self.keys / f"{name}.key_secret", self.keys / "broker.key"
        client = Client(self.service.frontend, key=key, server_key=server, patience=1.5)
        self.service.clients.append(client)
        return client

    def allow(self, name: str) -> None:
        (self.allowed / f"{name}.key").write_bytes((self.keys / f"{name}.key").read_bytes())


@pytest.fixture
def secured(service: Service) -> Secured:
    keys, allowed, workers = (service.folder / name for name in ("keys", "allowed", "workers"))
    for folder in (allowed, workers):
        folder.mkdir()
    for name in ("broker", "worker", "alice", "bob", "mallory"):
        new_key(name, keys)
    (workers / "worker.key").write_bytes((keys / "worker.key").read_bytes())
    service.frontend = service.backend = "tcp://0.0.0.0:*"
    broker = service.start_broker(
        *("--key", str(keys / "broker.key_secret"), "--tenant-requests", "3"),
        *("--allow-clients", str(allowed), "--allow-workers", str(workers)),
    )
    listening = broker.first_line()
    local = [listening[side][0].replace("0.0.0.0", "127.0.0.1") for side in ("clients", "workers")]
    service.frontend, service.backend = local
    secured = Secured(service, keys, allowed, broker)
    secured.allow("alice")
    secured.allow("bob")
    worker_key = ("--key", str(keys / "worker.key_secret"))
    service.start_worker("fake:step=0.002", *worker_key, "--server-key", str(keys / "broker.key"))
    secured.client("alice")
    service.wait_for_workers(1)
    return secured


def test_only_allowed_keys_connect_and_a_key_added_later_does(secured: Secured) -> None:
    assert secured.client("alice").ask("hi", {"max_tokens": 3}).finish_reason == "length"
    with pytest.raises(RequestFailedError, match="unreachable"):
        secured.client("mallory").ask("hi")
    plain = secured.service.client(patience=1.5)
    with pytest.raises(RequestFailedError, match="unreachable"):
        plain.ask("hi")
    secured.allow("mallory")
    assert secured.client("mallory").ask("hi", {"max_tokens": 3}).finish_reason == "length"


def test_a_clients_key_is_no_workers_key(secured: Secured) -> None:
    keys = secured.keys
    as_alice = ("--key", str(keys / "alice.key_secret"), "--server-key", str(keys / "broker.key"))
    secured.service.start_worker("fake", *as_alice)
    secured.client("bob").ask("hi", {"max_tokens": 300})
    assert len(secured.service.worker_figures()) == 1


def test_the_tenant_comes_from_the_key(secured: Secured) -> None:
    alice, bob = secured.client("alice"), secured.client("bob")
    long = {"max_tokens": 10**5, "salt": "bob", "seed": 1}
    held = [alice.submit(f"mine {n}", long) for n in range(3)]
    for handle in held:
        handle.read_all()
    assert bob.ask("yours", {"max_tokens": 3}).finish_reason == "length"
    impatient = Client(
        secured.service.frontend,
        key=secured.keys / "alice.key_secret",
        server_key=secured.keys / "broker.key",
        retry_for=0.2,
    )
    secured.service.clients.append(impatient)
    with pytest.raises(RequestFailedError, match="busy"):
        impatient.ask("one too many", {"max_tokens": 3})
    for handle in held:
        handle.cancel()
    logs = secured.broker.log.read_text()
    assert '"tenant": "bob"' in logs


def test_serve_with_keys_lets_its_own_worker_in(service: Service) -> None:
    keys = service.folder / "keys"
    for name in ("broker", "alice"):
        new_key(name, keys)
    allowed = service.folder / "allowed"
    allowed.mkdir()
    (allowed / "alice.key").write_bytes((keys / "alice.key").read_bytes())
    service.start(
        "serve",
        *("--model", "fake", "--listen", service.frontend),
        *("--key", str(keys / "broker.key_secret"), "--allow-clients", str(allowed)),
    )
    client = service.client(key=keys / "alice.key_secret", server_key=keys / "broker.key")
    assert client.ask("hi", {"max_tokens": 3}, timeout=60).finish_reason == "length"


def test_octavo_keys_makes_a_pair_that_only_its_owner_can_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ipc.cli.main", "keys", "new", "alice", "--directory"]
    for status in (0, 1):
        told = subprocess.run(
            [*command, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert told.returncode == status
    assert "exists already" in told.stderr
    pair = load_pair(tmp_path / "alice.key_secret")
    assert load_public(tmp_path / "alice.key") == pair.public
    assert (tmp_path / "alice.key_secret").stat().st_mode & 0o077 == 0


def test_key_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "junk.key").write_text("junk")
    for path, load in ((tmp_path / "junk.key", load_public), (tmp_path / "no.key", load_pair)):
        with pytest.raises(KeyFileError, match=path.name):
            load(path)
    new_key("alice", tmp_path)
    with pytest.raises(KeyFileError, match="no secret key"):
        load_pair(tmp_path / "alice.key")
    for name in ("../up", "", "a/b", "-x", "x" * 65):
        with pytest.raises(KeyFileError, match="no name for a key"):
            new_key(name, tmp_path)


def test_an_allow_list_follows_its_directory(tmp_path: Path) -> None:
    (tmp_path / "junk.key").write_text("junk")
    names = AllowList(tmp_path)
    public, _ = new_key("alice", tmp_path)
    key = load_public(public)
    assert names.name_of(key) == "alice"
    assert names.names() == ["alice"]
    public.unlink()
    assert names.name_of(key) is None
