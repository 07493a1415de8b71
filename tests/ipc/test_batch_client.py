"""A batch over a service: the client's side over a connection that is not there."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.answer import Delta, TokenLogprob, Usage
from engine.sampling_params import SamplingParams
from ipc.bad_request_error import BadRequestError
from ipc.batch_backend import BackendLostError
from ipc.client import Client
from ipc.client_backend import ClientBackend
from ipc.client_connection import Reader
from ipc.messages import Accepted, Chunk, Done, Error, Piece, SampleEnd, Submit
from ipc.token_ids import pack_ids


class Connection:
    """Keeps what is sent, and gives events as a test says."""

    def __init__(self) -> None:
        self.submits: list[Submit] = []
        self.sinks: dict[str, Callable[[Any], None]] = {}
        self.calls: list[tuple[str, str]] = []

    def submit(
        self,
        submit: Submit,
        sink: Callable[[Any], None],
        timeout: float | None,
        *,
        wake: bool = True,
    ) -> Reader:
        self.submits.append(submit)
        self.sinks[submit.id] = sink
        return Reader(submit.id, sink)

    def read_all(self, reader: Reader, *, wake: bool = True) -> None:
        self.calls.append(("read_all", reader.id))

    def cancel(self, reader: Reader) -> None:
        self.calls.append(("cancel", reader.id))


def make(**options: Any) -> tuple[ClientBackend, Any]:
    connection: Any = Connection()
    return ClientBackend(connection, model="m", max_rows=4, **options), connection


def test_a_request_is_sent_with_its_parameters_and_read_without_waiting() -> None:
    backend, connection = make()

    seed = backend.submit("line-1", "Hi", SamplingParams(seed=5, max_tokens=9, stop=(".",)))

    [submit] = connection.submits
    assert seed == 5
    assert (submit.id, submit.kind, submit.text, submit.model) == ("line-1", "text", "Hi", "m")
    assert submit.params == {"seed": 5, "max_tokens": 9, "stop": ["."]}
    assert submit.resume
    assert submit.linger == 0.25
    assert connection.calls == [("read_all", "line-1")]


def test_what_arrives_becomes_deltas_whose_last_have_reason_and_usage() -> None:
    backend, connection = make()
    backend.submit("line-1", [1, 2], SamplingParams(seed=5, n=2))
    logprobs = ((7, -0.5, ((7, -0.5),)),)
    pieces = (Piece(0, 1, "a", logprobs), Piece(1, 2, "bc"))
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0}
    ends = (SampleEnd(0, "eos", usage), SampleEnd(1, "error", None, "burnt"))
    sink = connection.sinks["line-1"]
    sink(Accepted("line-1", 5))
    sink(Chunk("line-1", 0, 0, pieces, ids=pack_ids((7, 8, 9))))
    sink(Done("line-1", 1, 5, ends))

    assert not connection.submits[0].resume  # several samples cannot go on elsewhere
    assert backend.step() == [
        Delta("line-1", 0, "a", (7,), (TokenLogprob(7, -0.5, ((7, -0.5),)),)),
        Delta("line-1", 1, "bc", (8, 9)),
        Delta("line-1", 0, "", (), finish_reason="eos", usage=Usage(2, 1)),
        Delta("line-1", 1, "", (), finish_reason="error", error="burnt"),
    ]


def test_log_probabilities_of_the_prompt_are_told_whole_at_the_end() -> None:
    backend, connection = make()
    backend.submit("line-1", [1, 2], SamplingParams(seed=5, prompt_logprobs=0))
    sink = connection.sinks["line-1"]
    sink(Chunk("line-1", 0, 0, (Piece(0, 0, "", prompt_logprobs=(None, (2, -0.5, ()))),)))
    piece = Piece(0, 1, "", prompt_logprobs=((3, -1.5, ()),), prompt_start=2)
    sink(Chunk("line-1", 1, 0, (piece,), ids=pack_ids((7,))))
    sink(Done("line-1", 2, 5, (SampleEnd(0, "eos"),)))

    told = (None, TokenLogprob(2, -0.5), TokenLogprob(3, -1.5))
    assert backend.step() == [
        Delta("line-1", 0, "", ()),
        Delta("line-1", 0, "", (7,)),
        Delta("line-1", 0, "", (), finish_reason="eos", prompt_logprobs=told),
    ]


def test_a_request_that_the_service_refuses_fails_alone() -> None:
    backend, connection = make()
    backend.submit("line-1", "Hi", SamplingParams())
    connection.sinks["line-1"](Error("bad_request", "too long", False, id="line-1"))

    error = "bad_request: too long"
    assert backend.step() == [Delta("line-1", 0, "", (), finish_reason="error", error=error)]


def test_a_service_that_is_gone_ends_the_job_after_what_had_arrived() -> None:
    backend, connection = make()
    backend.submit("line-1", "Hi", SamplingParams())
    backend.submit("line-2", "Hi", SamplingParams())
    connection.sinks["line-1"](Done("line-1", 0, 5, (SampleEnd(0, "eos"),)))
    connection.sinks["line-2"](Error("unreachable", "silence", True, id="line-2"))

    assert [delta.request_id for delta in backend.step()] == ["line-1"]
    with pytest.raises(BackendLostError, match="unreachable: silence"):
        backend.step()


def test_a_cancelled_request_is_heard_of_no_more() -> None:
    backend, connection = make()
    backend.submit("line-1", "Hi", SamplingParams())
    backend.cancel("line-1")
    backend.cancel("line-1")
    connection.sinks["line-1"](Done("line-1", 0, 5, (SampleEnd(0, "cancelled"),)))

    assert connection.calls == [("read_all", "line-1"), ("cancel", "line-1")]
    assert backend.step() == []


def test_a_prompt_that_no_message_can_carry_is_refused_at_once() -> None:
    backend, _connection = make()

    with pytest.raises(BadRequestError):
        backend.submit("line-1", "x" * 5_000_000, SamplingParams())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A real service with an engine that needs no model; its address and its process."""
    address = f"ipc://{tmp_path}/service"
    command = [sys.executable, "-m", "ipc.cli.main", "serve", "--listen", address]
    process = subprocess.Popen(
        [*command, "--model", "fake:step=0.01"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()  # it listens
    with Client(address) as client:
        client.ask("a word", {"max_tokens": 1})  # and its worker is there
    yield address, process
    process.terminate()
    process.wait(timeout=60)
    process.stdout.close()


def test_a_file_is_answered_by_a_running_service(
    tmp_path: Path, service: tuple[str, "subprocess.Popen[str]"]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"custom_id": str(n), "prompt": f"p{n}", "max_tokens": 1 + n} for n in range(20)]
    lines.append({"custom_id": "x", "prompt": "!refuse"})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(model: str) -> "subprocess.CompletedProcess[str]":
        words = ["batch", str(source), "-o", str(output), "--connect", service[0]]
        command = [sys.executable, "-m", "ipc.cli.main", *words, "--model", model]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    unknown, done = run("nobody"), run("fake")

    assert unknown.returncode == 1
    assert "unknown_model" in unknown.stderr
    assert done.returncode == 1
    assert "1 of 21 requests failed" in done.stderr
    records = {each["custom_id"]: each for each in map(json.loads, output.open())}
    assert records.pop("x")["error"]["code"] == "failed"
    counts = {name: len(each["choices"][0]["token_ids"]) for name, each in records.items()}
    assert counts == {str(n): 1 + n for n in range(20)}


def test_flags_of_an_engine_are_refused_with_a_service(tmp_path: Path) -> None:
    words = ["batch", "-", "-o", "-", "--connect", "tcp://127.0.0.1:1", "--exact"]
    command = [sys.executable, "-m", "ipc.cli.main", *words]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--exact is for an engine of one's own" in done.stderr
