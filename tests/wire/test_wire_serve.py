"""The commands, as an operator starts and ends them."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from processes import HEARTBEAT, ROOT, Process, Service, alive, wait_until

from ipc.client import RequestFailedError
from ipc.fake_engine import fake_text, fake_tokens

BEAT = ("--heartbeat", str(HEARTBEAT))


def octavo(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ipc.cli.main", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=90, cwd=ROOT, check=False
    )


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def serve(service: Service, *words: str, model: str = "fake:step=0.005") -> Process:
    listen = ("--listen", service.frontend, "--http", "0")
    return service.start("serve", "--model", model, *listen, *BEAT, *words)


def worker_of(process: Process) -> int:
    """Return the process id of serve's worker."""

    def children() -> list[str]:
        command = ["ps", "-eo", "pid=,ppid=,stat="]
        rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        table = [row.split() for row in rows.splitlines()]
        parent = str(process.popen.pid)
        return [pid for pid, ppid, stat in table if ppid == parent and stat[0] != "Z"]

    return int(wait_until(children)[0])


def test_serve_answers_reports_and_ends_calmly_with_all_it_started(service: Service) -> None:
    process = serve(service)
    port = process.first_line()["http"]
    wait_until(lambda: get(port, "/healthz")[0] == 200)

    told = octavo("ask", "hello", "--connect", service.frontend, "--max-tokens", "5", "--seed", "3")
    assert told.stdout == fake_text(fake_tokens(b"hello", 3, 0, 0, 5)) + "\n"
    wait_until(lambda: "octavo_worker_mean_batch_width" in get(port, "/metrics")[1])
    status, metrics = get(port, "/metrics")
    assert status == 200
    for line in (
        'octavo_ended_total{reason="length"} 1.0',
        "octavo_tokens_total 5.0",
        "octavo_first_token_seconds_count 1.0",
        "octavo_queue_seconds_count 1.0",
        "octavo_token_seconds_count 1.0",
        "octavo_admitted_total 1.0",
    ):
        assert line in metrics.splitlines()
    top = octavo("top", "--once", "--connect", service.frontend)
    assert "fake" in top.stdout
    assert "0/16" in top.stdout

    worker = worker_of(process)
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGTERM)
    assert process.ends() == 0
    assert not alive(worker)
    log = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert any(entry["event"] == "ended" and entry["tokens"] == 5 for entry in log)
    assert all("Traceback" not in str(entry) for entry in log)


def test_sigterm_lets_what_runs_finish_and_tells_the_rest(service: Service) -> None:
    process = serve(service, "--drain-limit", "4", model="fake:step=0.02")
    client = service.client(retry_for=0.1)
    short = client.submit("short", {"max_tokens": 30, "seed": 1})
    endless = client.submit("endless", {"max_tokens": 10**6})
    next(iter(short))  # leaving its iterator cancels it
    short = client.submit("short", {"max_tokens": 30, "seed": 1})
    wait_until(lambda: service.figures()["running"] == 2)
    process.signal(signal.SIGTERM)
    wait_until(lambda: service.figures()["draining"])
    process.signal(signal.SIGTERM)

    late = client.submit("late")
    assert short.result(60).token_ids == list(fake_tokens(b"short", 1, 0, 0, 30))
    for handle in (late, endless):
        with pytest.raises(RequestFailedError, match="draining"):
            handle.result(60)
    assert process.ends() == 0


def test_health_is_absent_while_the_worker_is_and_serve_starts_it_again(service: Service) -> None:
    process = serve(service)
    port = process.first_line()["http"]
    wait_until(lambda: get(port, "/healthz")[0] == 200)
    client = service.client()
    first = worker_of(process)
    for word in ("!die", "!raise"):
        with pytest.raises(RequestFailedError, match="worker_lost"):
            client.ask(word)
        assert wait_until(lambda: get(port, "/healthz")[0] == 503)
        wait_until(lambda: get(port, "/healthz")[0] == 200)
        assert worker_of(process) != first
    assert client.ask("well", {"max_tokens": 3}).finish_reason == "length"


def test_an_engine_that_hangs_is_given_up_and_health_says_so(service: Service) -> None:
    service.start_broker()
    words = ("--hang-limit", "1", "--http", "0")
    worker = service.start_worker("fake", *words)
    client = service.client()
    service.wait_for_workers(1)
    with pytest.raises(RequestFailedError, match=r"worker_lost: .*no step for 1 s") as caught:
        client.ask("!hang")
    assert caught.value.retryable
    assert worker.ends() == 1


def test_a_model_that_cannot_be_loaded_ends_serve_with_the_reason(service: Service) -> None:
    process = serve(service, model="fake:nonsense=1")
    assert process.ends() == 1
    assert "has no 'nonsense'" in process.log.read_text()


def test_a_worker_ends_when_the_serve_that_started_it_is_killed(service: Service) -> None:
    process = serve(service)
    service.client()
    service.wait_for_workers(1)
    worker = worker_of(process)
    process.kill()
    wait_until(lambda: not alive(worker))


def test_a_worker_drains_at_sigterm_and_its_unfinished_requests_go_on(service: Service) -> None:
    service.start_broker()
    first = service.start_worker("fake:step=0.01", "--drain-limit", "0.5")
    client = service.client()
    service.wait_for_workers(1)
    handle = client.submit("long", {"max_tokens": 150, "seed": 2}, resume=True)
    handle.read_all()
    wait_until(lambda: service.figures()["running"] == 1)
    first.signal(signal.SIGTERM)
    service.start_worker("fake:step=0.001")
    assert handle.result(30).token_ids == list(fake_tokens(b"long", 2, 0, 0, 150))
    assert first.ends() == 0


def test_a_bind_that_others_can_reach_is_refused_without_keys() -> None:
    for address in ("tcp://*:0", "tcp://0.0.0.0:*", "tcp://example.org:7766"):
        told = octavo("broker", "--listen", address)
        assert told.returncode == 2
        assert "open to other machines" in told.stderr
        assert "octavo keys new" in told.stderr


def test_ask_says_what_is_wrong(service: Service) -> None:
    service.start_broker()
    service.start_worker()
    where = ("--connect", service.frontend)
    refused = octavo("ask", "!refuse", *where)
    assert (refused.returncode, "asks to be refused" in refused.stderr) == (1, True)
    assert octavo("ask", "hi", "--connect", "carrier-pigeon").returncode == 2
    timeout = octavo("ask", "hi", "--connect", f"ipc://{service.folder}/nobody", "--timeout", "0.5")
    assert (timeout.returncode, "timeout" in timeout.stderr) == (1, True)
