import json
import os
import tempfile
from typing import Any

import pytest
from fake_backend import FakeBackend, token_text, tokens_of

from ipc.batch_file import encode_record
from ipc.batch_job import READ_AHEAD, BatchJob
from ipc.batch_line import LineParser
from ipc.batch_summary import BatchSummary
from ipc.input_lines import InputLines


class Records(list[dict[str, Any]]):
    def close(self) -> None:
        pass


def make_job(lines: list[Any], backend: FakeBackend, **options: Any) -> tuple[BatchJob, Records]:
    records = Records()
    with tempfile.TemporaryFile() as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        file.seek(0)
        descriptor = os.dup(file.fileno())
    job = BatchJob(
        lines=InputLines(descriptor),
        parser=LineParser(model="demo"),
        backend=backend,
        output=records,
        model="demo",
        **options,
    )
    return job, records


def run(lines: list[Any], backend: FakeBackend | None = None) -> tuple[Records, BatchSummary]:
    job, records = make_job(lines, backend or FakeBackend())
    return records, job.run()


def own(name: str, **more: Any) -> dict[str, Any]:
    return {"custom_id": name, "prompt": name, "max_tokens": 5, "seed": 1, **more}


def text_of(tokens: list[int]) -> str:
    return "".join(map(token_text, tokens))


def test_a_line_of_ours_is_answered_with_text_ids_usage_and_seed() -> None:
    [record], _summary = run([own("a")])

    tokens = tokens_of("a", 1, 0, 5)
    assert record.pop("id").startswith("batch_req_")
    assert record == {
        "custom_id": "a",
        "model": "demo",
        "choices": [
            {
                "index": 0,
                "text": text_of(tokens),
                "token_ids": tokens,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 5,
            "cached_tokens": 1,
            "drafted_tokens": 0,
            "accepted_tokens": 0,
        },
        "seed": 1,
        "error": None,
    }


def test_samples_are_choices_of_one_record_and_the_prompt_counts_once() -> None:
    [record], summary = run([own("a", n=3)])

    wanted = [tokens_of("a", 1, index, 5) for index in range(3)]
    assert [choice["token_ids"] for choice in record["choices"]] == wanted
    assert record["usage"]["prompt_tokens"] == 1
    assert record["usage"]["completion_tokens"] == 15
    assert (summary.prompt_tokens, summary.completion_tokens) == (1, 15)


def test_logprobs_are_reported_where_asked() -> None:
    [record], _summary = run([own("a", logprobs=1, max_tokens=2)])

    first, second = tokens_of("a", 1, 0, 2)
    assert record["choices"][0]["logprobs"] == [
        {"token_id": first, "logprob": -0.5, "top": ((first, -0.5),)},
        {"token_id": second, "logprob": -0.5, "top": ((second, -0.5),)},
    ]


def test_an_openai_chat_line_is_answered_in_that_format() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 2, "seed": 1, "logprobs": True, "top_logprobs": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}

    [record], _summary = run([line])

    first, second = tokens_of(messages, 1, 0, 2)
    answered = record["response"]["body"]
    assert answered.pop("created") > 1_700_000_000
    assert record["id"].removeprefix("batch_req_") == answered.pop("id").removeprefix("chatcmpl-")

    def named(token: int) -> dict[str, Any]:
        text = token_text(token)
        return {"token": text, "logprob": -0.5, "bytes": list(text.encode())}

    assert record["error"] is None
    assert record["response"] == {
        "status_code": 200,
        "request_id": "line-1",
        "body": {
            "object": "chat.completion",
            "model": "demo",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": text_of([first, second]),
                        "refusal": None,
                    },
                    "logprobs": {
                        "content": [
                            {**named(token), "top_logprobs": [named(token)]}
                            for token in (first, second)
                        ],
                        "refusal": None,
                    },
                    "finish_reason": "length",
                }
            ],
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        },
    }


def test_an_openai_completion_line_is_answered_in_that_format() -> None:
    body = {"prompt": "Hi", "max_tokens": 2, "seed": 1, "logprobs": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}

    [record], _summary = run([line])

    tokens = tokens_of("Hi", 1, 0, 2)
    texts = [token_text(token) for token in tokens]
    assert record["response"]["body"]["object"] == "text_completion"
    assert record["response"]["body"]["choices"] == [
        {
            "index": 0,
            "text": "".join(texts),
            "logprobs": {
                "tokens": texts,
                "token_logprobs": [-0.5, -0.5],
                "top_logprobs": [{texts[0]: -0.5}, {texts[1]: -0.5}],
                "text_offset": [0, len(texts[0])],
            },
            "finish_reason": "length",
        }
    ]


def test_bad_lines_become_error_records_and_the_others_go_on() -> None:
    backend = FakeBackend()
    backend.fails = {"f": "the page burnt"}
    chat = {"custom_id": "c", "url": "/v1/chat/completions", "body": {"messages": []}}
    long = own("d", prompt="x" * 501)
    lines = [b"{", own("b", top_p=2), chat, long, own("e"), own("f"), own("e", n=2)]

    records, summary = run(lines, backend)

    errors = {each["error"]["line"]: each for each in records if each["error"] is not None}
    assert {line: each["error"]["code"] for line, each in errors.items()} == {
        1: "bad_json",
        2: "bad_parameter",
        3: "wrong_type",
        4: "refused",
        6: "failed",
        7: "duplicate_custom_id",
    }
    assert errors[4]["error"]["message"] == "the prompt has 501 tokens; 500 fit"
    assert errors[6]["error"]["message"] == "the page burnt"
    assert [each["custom_id"] for each in records if each["error"] is None] == ["e"]
    assert errors[3]["response"] is None  # in OpenAI's format
    assert "response" not in errors[2]
    assert (summary.answered, summary.failed, summary.requests) == (1, 6, 7)
    assert summary.first_error is not None
    assert summary.first_error.startswith("line 1: the line is not JSON")


def test_the_backend_is_fed_but_never_given_more_than_a_few_times_its_rows() -> None:
    backend = FakeBackend(max_rows=3)

    records, _summary = run([own(str(number)) for number in range(50)], backend)

    assert len(records) == 50
    assert backend.most_held == READ_AHEAD * 3


def test_a_request_with_more_samples_than_the_bound_still_runs() -> None:
    backend = FakeBackend(max_rows=1)

    records, _summary = run([own("a", n=10), own("b")], backend)

    assert {each["custom_id"]: len(each["choices"]) for each in records} == {"a": 10, "b": 1}


def test_a_job_that_is_stopped_cancels_what_runs_and_writes_no_half_answer() -> None:
    backend = FakeBackend()
    holder: list[BatchJob] = []

    def stop_after_two(summary: BatchSummary) -> None:
        if summary.answered >= 2:
            holder[0].stop(15)

    job, records = make_job([own(str(n)) for n in range(9)], backend, on_progress=stop_after_two)
    holder.append(job)
    summary = job.run()

    assert summary.signal == 15
    assert len(records) == 2
    assert len(backend.cancelled) == len(backend.submitted) - 2
    assert {len(each["choices"][0]["token_ids"]) for each in records} == {5}


def test_a_slow_pipe_does_not_hold_up_what_runs() -> None:
    receive, send = os.pipe()
    writer = os.fdopen(send, "wb", buffering=0)
    writer.write(encode_record(own("a")))
    records = Records()
    job = BatchJob(
        lines=InputLines(receive),
        parser=LineParser(model="demo"),
        backend=FakeBackend(),
        output=records,
        model="demo",
        on_progress=lambda summary: writer.close() if summary.answered == 1 else None,
    )

    assert job.run().answered == 1  # the pipe was closed only when the answer was there
    os.close(receive)


def test_a_failing_backend_ends_the_job_and_what_ran_is_cancelled() -> None:
    class Broken(FakeBackend):
        def step(self) -> Any:
            raise RuntimeError("out of memory")

    backend = Broken()
    job, records = make_job([own("a"), own("b")], backend)

    with pytest.raises(RuntimeError, match="out of memory"):
        job.run()
    assert records == []
    assert backend.cancelled == ["line-1", "line-2"]
