"""The commands over the real engine and the embedded model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OCTAVO = [sys.executable, "-m", "ipc.cli.main"]
EXACT = {**os.environ, "OCTAVO_BLAS": "reference"}  # whose rows do not depend on the batch


def run(
    *words: str, text: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTAVO, *words],
        input=text,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def write_input(folder: Path) -> Path:
    """Prompts of uneven lengths, greedy and sampled, in all three formats, and a bad one."""
    chat = [{"role": "user", "content": "Name three colours."}]
    lines: list[dict[str, object]] = [
        {"custom_id": "sea", "prompt": "The sea", "max_tokens": 8},
        {"custom_id": "once", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.8},
        {"custom_id": "chat", "messages": chat, "max_tokens": 6},
        {
            "custom_id": "openai",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "demo", "messages": chat, "max_completion_tokens": 4, "top_p": 0.9}
            | {"temperature": 1.0, "logprobs": True, "top_logprobs": 2},
        },
        {
            "custom_id": "two",
            "url": "/v1/completions",
            "body": {"prompt": "He said", "max_tokens": 12, "n": 2, "temperature": 1.0},
        },
        {"custom_id": "ids", "prompt": [84, 258, 71], "max_tokens": 20, "ignore_eos": True},
        {"custom_id": "long", "prompt": "The sea " * 5000},
        {"custom_id": "last", "prompt": "It was the best of times", "max_tokens": 30},
    ]
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> list[str]:
    """Records as sorted texts, without the moment they were made at and who shared a prefix."""
    made = []
    for record in map(json.loads, path.open()):
        if record.get("response"):
            del record["response"]["body"]["created"]
            del record["response"]["body"]["usage"]["prompt_tokens_details"]
        else:
            record.pop("usage", None)
        made.append(json.dumps(record, sort_keys=True))
    return sorted(made)


def test_a_batch_killed_again_and_again_ends_with_the_answers_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    source, whole, output = write_input(tmp_path), tmp_path / "whole", tmp_path / "out"
    flags = ["--exact", "--max-rows", "3"]
    undisturbed = run("batch", str(source), "-o", str(whole), *flags, "--json", env=EXACT)
    assert undisturbed.returncode == 1
    summary = json.loads(undisturbed.stdout)
    assert (summary["answered"], summary["failed"]) == (7, 1)
    assert summary["completion_tokens"] > 60
    assert summary["mean_batch_width"] > 1

    command = [*OCTAVO, "batch", str(source), "-o", str(output), *flags]
    for kill in range(2):
        size = output.stat().st_size if output.exists() else 0
        job = subprocess.Popen(command, env=EXACT, stderr=subprocess.DEVNULL)
        while job.poll() is None and (not output.exists() or output.stat().st_size == size):
            time.sleep(0.002)
        time.sleep(0.1 * kill)
        job.send_signal(signal.SIGKILL)
        job.wait()
        assert output.stat().st_size > size
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_0123')  # what a kill inside a write leaves
    done = run("batch", str(source), "-o", str(output), *flags, env=EXACT)

    assert done.returncode == 1
    assert "cut off a torn last line (22 bytes)" in done.stderr
    assert "1 of 8 requests failed" in done.stderr
    assert read(output) == read(whole)


def test_generate_streams_what_a_batch_answers(tmp_path: Path) -> None:
    line = {"custom_id": "a", "prompt": "The sea", "max_tokens": 12}
    words = ["batch", "-", "-o", "-"]

    batch = run(*words, text=json.dumps(line))
    alone = run("generate", "The sea", "--max-tokens", "12", "--verbose")
    piped = run("generate", "-", "--max-tokens", "12", text="The sea")

    [record] = map(json.loads, batch.stdout.splitlines())
    assert alone.returncode == 0
    assert alone.stdout == record["choices"][0]["text"] + "\n" == piped.stdout
    assert "output tokens: 12" in alone.stderr


def test_generate_says_plainly_what_does_not_work() -> None:
    too_long = run("generate", "-", text="The sea " * 5000)
    no_model = run("generate", "Hi", "--model", os.devnull)

    assert (too_long.returncode, no_model.returncode) == (1, 1)
    assert too_long.stderr.splitlines()[-1].startswith("octavo generate: error: ")
    assert "4096" in too_long.stderr
    assert no_model.stderr.startswith(f"octavo generate: error: cannot load '{os.devnull}'")
    assert "Traceback" not in too_long.stderr + no_model.stderr


def test_the_demo_decodes_and_shows_its_table() -> None:
    done = run("demo", "--limit", "2", "--show", "1")

    assert done.returncode == 0
    assert "  -> " in done.stdout
    assert "tokens/s" in done.stderr


def test_inspect_tells_what_was_loaded() -> None:
    told = run("inspect", "demo-draft")
    described = json.loads(run("inspect", "--model", "demo-draft", "--json").stdout)

    assert told.returncode == 0
    assert described["model"] == "demo-draft"
    assert len(described["layers"]) == 3
    assert "0-2" in told.stdout
    assert described["layers"][0] in told.stdout
