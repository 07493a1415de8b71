"""A job that is killed and run again, over a backend whose answers are known (see fake_backend)."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("fake_backend.py")
Record = dict[str, Any]
ENDLESS = (("short", 1), ("long", 999))


def lines_of(count: int) -> list[Any]:
    """Requests of uneven lengths in three formats, and a few lines that are bad."""
    lines: list[Any] = []
    for number in range(count):
        name, tokens = f"r{number}", 1 + number * 7 % 23
        asked = {"max_tokens": tokens, "n": 1 + number % 2}
        if number % 3 == 0:
            lines.append({"custom_id": name, "prompt": f"p{number}", **asked})
        elif number % 3 == 1:
            body = {"messages": [{"role": "user", "content": f"p{number}"}], **asked}
            lines.append({"custom_id": name, "url": "/v1/chat/completions", "body": body})
        else:
            body = {"prompt": f"p{number}", **asked}
            lines.append({"custom_id": name, "url": "/v1/completions", "body": body})
    lines[3:3] = [b"not json", {"custom_id": "r0", "prompt": "twice"}, {"custom_id": "x"}]
    return lines


def write_input(folder: Path, lines: Iterable[Any]) -> Path:
    path = folder / "in.jsonl"
    encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def command(source: Path | str, output: Path | str, *flags: str) -> list[str]:
    options = ["--output", str(output), "--seed", "5", *flags]
    return [sys.executable, str(SCRIPT), str(source), *options]


def run(source: Path, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(source, output, *flags), capture_output=True, text=True, check=False, timeout=90
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def without_times(records: Iterable[Record]) -> list[str]:
    """Records as sorted texts, without the moment they were made at."""
    made = []
    for record in records:
        if record.get("response"):
            del record["response"]["body"]["created"]
        made.append(json.dumps(record, sort_keys=True))
    return sorted(made)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """An input, and the output of a job that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    source = write_input(folder, lines_of(24))
    done = run(source, folder / "out.jsonl")
    assert done.returncode == 1
    assert "3 of 27 requests failed" in done.stderr
    return source, (folder / "out.jsonl").read_bytes()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_a_job_killed_at_random_moments_ends_with_the_answers_of_an_undisturbed_one(
    whole: tuple[Path, bytes], output: Path
) -> None:
    source, undisturbed = whole
    moments = random.Random(1)
    kills = grown = 0
    for _attempt in range(40):
        size = output.stat().st_size if output.exists() else 0
        job = subprocess.Popen(
            command(source, output, "--step-seconds", "0.03"), stderr=subprocess.DEVNULL
        )
        while job.poll() is None and (not output.exists() or output.stat().st_size == size):
            time.sleep(0.005)  # it has not come to its first new record
        time.sleep(moments.uniform(0, 0.1))
        job.send_signal(signal.SIGKILL)
        if job.wait() != -signal.SIGKILL:
            break
        kills += 1
        grown += output.stat().st_size > size
    done = run(source, output)

    assert kills >= 3
    assert grown == kills
    assert done.returncode == 1
    wanted = [json.loads(line) for line in undisturbed.splitlines()]
    assert without_times(read(output)) == without_times(wanted)


def test_an_output_cut_at_any_byte_is_completed(whole: tuple[Path, bytes], output: Path) -> None:
    source, undisturbed = whole
    wanted = without_times(json.loads(line) for line in undisturbed.splitlines())
    ends = [at + 1 for at, byte in enumerate(undisturbed) if byte == ord("\n")]
    cuts = {0, 1, 5, ends[0] - 1, ends[0], ends[0] + 1, ends[-1] - 1, ends[-1]}

    for cut in sorted(cuts | set(random.Random(2).sample(range(len(undisturbed)), 4))):
        output.write_bytes(undisturbed[:cut])
        done = run(source, output)

        assert done.returncode == 1
        assert without_times(read(output)) == wanted
        assert ("cut off a torn last line" in done.stderr) == (cut not in (0, *ends))


def test_a_job_that_is_done_says_so_and_changes_nothing(
    whole: tuple[Path, bytes], output: Path
) -> None:
    source, undisturbed = whole
    output.write_bytes(undisturbed)

    done = run(source, output, "--json")

    assert output.read_bytes() == undisturbed
    summary = json.loads(done.stdout)
    counts = ("requests", "answered", "failed", "kept_answers", "kept_errors")
    assert [summary[name] for name in counts] == [27, 0, 0, 24, 3]
    assert "3 in an earlier run; --retry-errors runs them again" in done.stderr


def test_lines_added_to_the_input_are_run(whole: tuple[Path, bytes], tmp_path: Path) -> None:
    _source, undisturbed = whole
    output = tmp_path / "out.jsonl"
    output.write_bytes(undisturbed)
    more = {"custom_id": "new", "prompt": "more", "max_tokens": 2}

    run(write_input(tmp_path, [*lines_of(24), more]), output)

    assert output.read_bytes().startswith(undisturbed)
    assert [record["custom_id"] for record in read(output)][27:] == ["new"]


def test_errors_are_kept_until_they_are_to_be_tried_again(tmp_path: Path, output: Path) -> None:
    good = {"custom_id": "a", "prompt": "a", "max_tokens": 2}
    run(write_input(tmp_path, [good, {"custom_id": "b", "prompt": 5}]), output)
    repaired = write_input(tmp_path, [good, {"custom_id": "b", "prompt": "5", "max_tokens": 2}])

    refused = run(repaired, output)
    done = run(repaired, output, "--retry-errors")

    assert refused.returncode == 2
    assert "line 2 of the input changed since its error went into" in refused.stderr
    assert done.returncode == 0
    assert [(record["custom_id"], record["error"]) for record in read(output)] == [
        ("a", None),
        ("b", None),
    ]


OTHER_INPUTS = {
    "another request under the same name": ({"custom_id": "a", "prompt": "other"}, ()),
    "another set of names": ({"custom_id": "z", "prompt": "a"}, ()),
    "another default": ({"custom_id": "a", "prompt": "a"}, ("--max-tokens", "3")),
    "another seed": ({"custom_id": "a", "prompt": "a"}, ("--seed", "6")),
    "another model": ({"custom_id": "a", "prompt": "a"}, ("--model", "demo-draft")),
}


@pytest.mark.parametrize(("line", "flags"), OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_the_output_of_another_job_is_refused_unless_told_to_append(
    tmp_path: Path, output: Path, line: Record, flags: tuple[str, ...]
) -> None:
    run(write_input(tmp_path, [{"custom_id": "a", "prompt": "a"}]), output)
    before = output.read_bytes() + b'{"id": "batch'
    output.write_bytes(before)
    other = write_input(tmp_path, [line])

    refused = run(other, output, *flags)

    assert refused.returncode == 2
    assert "is the output of another job" in refused.stderr
    assert "--append" in refused.stderr
    assert output.read_bytes() == before  # not even its torn line was touched
    appended = run(other, output, *flags, "--append")
    assert appended.returncode == 0
    expected = 1 if flags[:1] == ("--model",) else 2  # the same was asked and has an answer
    assert len(read(output)) == expected


def test_two_jobs_at_once_on_one_output_are_refused(tmp_path: Path, output: Path) -> None:
    lines = [{"custom_id": name, "prompt": "a", "max_tokens": length} for name, length in ENDLESS]
    source = write_input(tmp_path, lines)
    first = subprocess.Popen(
        command(source, output, "--step-seconds", "0.5"), stderr=subprocess.DEVNULL
    )
    while not output.exists() or not output.read_bytes():  # its first record
        time.sleep(0.01)

    second = run(source, output)
    first.kill()
    first.wait()

    assert second.returncode == 2
    assert "another job is writing" in second.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_job_with_its_status_and_a_whole_output(
    tmp_path: Path, whole: tuple[Path, bytes], output: Path, number: int, status: int
) -> None:
    source, undisturbed = whole
    job = subprocess.Popen(
        command(source, output, "--step-seconds", "0.05"), stderr=subprocess.PIPE, text=True
    )
    while not output.exists() or output.read_bytes().count(b"\n") < 4:
        time.sleep(0.01)
    job.send_signal(number)
    told = job.communicate(timeout=90)[1]

    assert job.returncode == status
    assert "the same command run again goes on from here" in told
    assert "Traceback" not in told
    assert 4 <= len(read(output)) < 27
    run(source, output)
    wanted = [json.loads(line) for line in undisturbed.splitlines()]
    assert without_times(read(output)) == without_times(wanted)


def test_a_job_whose_backend_breaks_says_that_nothing_is_lost(tmp_path: Path, output: Path) -> None:
    lines = [{"custom_id": str(n), "prompt": "p", "max_tokens": 2} for n in range(9)]
    source = write_input(tmp_path, [*lines, {"custom_id": "x", "prompt": "!raise"}])

    done = subprocess.run(command(source, output), capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "decoding failed with RuntimeError('the engine fell over'); the records" in done.stderr
    assert "the same command run again goes on behind them" in done.stderr
    assert len(read(output)) == 8
    run(write_input(tmp_path, lines), output)
    assert len(read(output)) == 9


def test_pipes_are_read_and_written(whole: tuple[Path, bytes]) -> None:
    source, undisturbed = whole
    done = subprocess.run(
        command("-", "-", "--json"), input=source.read_bytes(), capture_output=True, check=False
    )

    assert done.returncode == 1
    wanted = [json.loads(line) for line in undisturbed.splitlines()]
    answered = [json.loads(line) for line in done.stdout.splitlines()]
    assert without_times(answered) == without_times(wanted)
    assert json.loads(done.stderr.splitlines()[0])["failed"] == 3


def test_a_pipe_is_answered_while_it_stays_open() -> None:
    job = subprocess.Popen(
        command("-", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert job.stdin is not None
    assert job.stdout is not None
    for name in "ab":
        line = {"custom_id": name, "prompt": name, "max_tokens": 4}
        job.stdin.write(json.dumps(line).encode() + b"\n")
        job.stdin.flush()
        assert json.loads(job.stdout.readline())["custom_id"] == name
    job.stdin.close()
    assert job.stdout.read() == b""
    assert job.wait(timeout=90) == 0
    job.stdout.close()


def test_a_closed_output_pipe_ends_the_job_quietly(whole: tuple[Path, bytes]) -> None:
    source, _undisturbed = whole
    job = subprocess.Popen(
        command(source, "-"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stderr is not None
    job.stdout.close()

    assert (job.wait(timeout=90), job.stderr.read()) == (141, "")
    job.stderr.close()


def test_a_pipe_cannot_continue_a_file_unless_told_to_append(
    whole: tuple[Path, bytes], output: Path
) -> None:
    source, undisturbed = whole
    output.write_bytes(undisturbed[: undisturbed.index(b"\n") + 1])

    def pipe(*flags: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command("-", output, *flags),
            input=source.read_bytes(),
            capture_output=True,
            check=False,
        )

    refused = pipe()
    assert refused.returncode == 2
    assert b"a pipe cannot be compared" in refused.stderr
    assert pipe("--append").returncode == 1
    wanted = [json.loads(line) for line in undisturbed.splitlines()]
    assert without_times(read(output)) == without_times(wanted)


def test_the_input_is_never_in_memory_as_a_whole(tmp_path: Path, output: Path) -> None:
    """The writer of an endless input is kept waiting although the first record is out."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job = subprocess.Popen(
        command(fifo, output, "--step-seconds", "0.01"), stderr=subprocess.DEVNULL
    )
    with fifo.open("wb", buffering=0) as writer:
        os.set_blocking(writer.fileno(), False)
        taken = refused = 0
        while refused < 30 or not output.read_bytes():
            tokens = 1000 if taken else 1
            line = {"custom_id": str(taken), "prompt": "p" * 400, "max_tokens": tokens}
            written = writer.write(json.dumps(line).encode() + b"\n")
            if written is None:
                refused += 1
                time.sleep(0.01)
            else:
                taken, refused = taken + written, 0
            assert taken < 2**20  # a chunk ahead, the pipe itself, and what the backend holds
    job.kill()
    job.wait()


@pytest.mark.parametrize(
    ("source", "output_name", "told"),
    [
        ("missing.jsonl", "out", "cannot read"),
        (".", "out", "it is a folder"),
        ("in.jsonl", ".", "cannot write"),
        ("in.jsonl", "in.jsonl", "is the input too"),
        ("in.jsonl", "no/such/folder", "cannot write"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, source: str, output_name: str, told: str
) -> None:
    write_input(tmp_path, [{"custom_id": "a", "prompt": "a"}])

    done = run(tmp_path / source, tmp_path / output_name)

    assert done.returncode == 2
    assert told in done.stderr


def test_a_default_out_of_range_is_refused_before_anything_is_opened(
    tmp_path: Path, output: Path
) -> None:
    source = write_input(tmp_path, [{"custom_id": "a", "prompt": "a"}])

    done = run(source, output, "--top-p", "2")

    assert (done.returncode, output.exists()) == (2, False)
    assert "top_p is 2.0: it must be" in done.stderr


def test_an_answer_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    source = write_input(tmp_path, [{"custom_id": "a", "prompt": "a"}])

    done = run(source, Path("/dev/full"))

    assert done.returncode == 1
    assert "cannot write /dev/full: No space left on device; the records that" in done.stderr


def test_the_progress_bar_is_shown_when_asked_for(tmp_path: Path, output: Path) -> None:
    source = write_input(tmp_path, [{"custom_id": "a", "prompt": "a", "max_tokens": 2}])

    shown, silent = run(source, output, "--progress"), run(source, output)

    assert "decoding" in shown.stderr
    assert "1/1" in shown.stderr
    assert "decoding" not in silent.stderr
    assert "tokens/s" in silent.stderr
