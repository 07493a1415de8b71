import json
from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from ipc.batch_line import LineParser
from ipc.batch_request import BadLine, BatchRequest
from ipc.input_lines import InputLine


def parse(record: Any, *, parser: LineParser | None = None, number: int = 1) -> Any:
    content = record if isinstance(record, bytes) else json.dumps(record).encode()
    return (parser or LineParser(model="demo")).parse(InputLine(number, content))


def chat(**body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Hi"}
    body = {"model": "demo", "messages": [message]} | body
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(**body: Any) -> dict[str, Any]:
    body = {"model": "demo", "prompt": "Hi"} | body
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}


def test_a_line_of_ours_becomes_a_request_with_its_own_parameters_before_the_jobs() -> None:
    parser = LineParser(model="demo", defaults={"max_tokens": 9, "top_k": 4})
    line = {"custom_id": "a", "prompt": "Hi", "max_tokens": 5, "seed": 3, "stop": "."}

    request = parse(line, parser=parser, number=7)

    params = SamplingParams(max_tokens=5, top_k=4, seed=3, stop=(".",))
    assert request == BatchRequest(7, "a", "octavo", "Hi", params)


def test_token_ids_are_a_prompt() -> None:
    assert parse({"custom_id": "a", "prompt": [1, 2]}).prompt == (1, 2)


def test_a_null_parameter_leaves_the_jobs_default() -> None:
    parser = LineParser(model="demo", defaults={"max_tokens": 9})

    request = parse({"custom_id": "a", "prompt": "Hi", "max_tokens": None}, parser=parser)

    assert request.params.max_tokens == 9


def test_openai_chat_spellings_are_understood() -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    line = chat(
        messages=[{"role": "user", "content": parts}],
        max_completion_tokens=5,
        seed=1,
        logprobs=True,
        top_logprobs=2,
        n=2,
        user="somebody",
        stream=False,
        response_format={"type": "json_object"},
    )

    request = parse(line)

    schema = '{"type": "object"}'
    params = SamplingParams(max_tokens=5, seed=1, logprobs=2, n=2, json_schema=schema)
    assert request == BatchRequest(1, "a", "chat", [{"role": "user", "content": "Hi"}], params)


def test_an_openai_completion_may_hold_its_prompt_in_a_list_of_one() -> None:
    assert parse(completion(prompt=["Hi"])).prompt == "Hi"
    assert parse(completion(prompt=[[5, 6]])).prompt == (5, 6)
    assert parse(completion(logprobs=3)).params.logprobs == 3


def test_lines_without_a_seed_get_their_own_and_always_the_same() -> None:
    parser = LineParser(model="demo")
    a = parse({"custom_id": "a", "prompt": "Hi"}, parser=parser)
    b = parse({"custom_id": "b", "prompt": "Hi"}, parser=parser, number=2)
    again = parse({"custom_id": "a", "prompt": "Hi"}, number=5)
    of_another_job = parse({"custom_id": "a", "prompt": "Hi"}, parser=LineParser(model="x", seed=1))

    assert a.params.seed == again.params.seed
    assert len({a.params.seed, b.params.seed, of_another_job.params.seed}) == 3


def test_the_digest_tells_requests_apart_and_not_lines() -> None:
    base = {"custom_id": "a", "prompt": "Hi", "max_tokens": 5}
    same = parse({"max_tokens": 5.0, "prompt": "Hi", "custom_id": "a"}, number=9)
    others = [{**base, "prompt": "Ho"}, {**base, "max_tokens": 6}, {**base, "seed": 1}]

    assert parse(base).digest == same.digest
    assert len({parse(base).digest, *(parse(other).digest for other in others)}) == 4


def test_a_second_use_of_a_custom_id_is_refused_and_names_the_first() -> None:
    parser = LineParser(model="demo")
    parse({"custom_id": "a", "prompt": "Hi"}, parser=parser, number=3)

    bad = parse({"custom_id": "a", "prompt": "Ho"}, parser=parser, number=8)

    assert (bad.line, bad.code, bad.custom_id) == (8, "duplicate_custom_id", "a")
    assert "that of line 3" in bad.message


def test_a_custom_id_counts_as_used_even_where_its_line_was_bad() -> None:
    parser = LineParser(model="demo")
    parse({"custom_id": "a"}, parser=parser)

    bad = parse({"custom_id": "a", "prompt": "Ho"}, parser=parser, number=2)

    assert bad.code == "duplicate_custom_id"


def test_another_model_is_refused_unless_any_will_do() -> None:
    line = chat(model="gpt-9")

    assert parse(line).message.startswith('"model" is "gpt-9", but this job runs "demo"')
    assert parse({"custom_id": "a", "prompt": "Hi", "model": "x"}).code == "bad_value"
    assert isinstance(parse(line, parser=LineParser(model="demo", any_model=True)), BatchRequest)


OWN = {"custom_id": "a", "prompt": "Hi"}
BAD_LINES: list[tuple[Any, str, str]] = [
    (b"{", "bad_json", "not JSON"),
    (b"\xff{}", "bad_json", "not UTF-8: invalid start byte at byte 1"),
    (b"[" * 100_000, "bad_json", "not usable JSON"),
    (b'{"custom_id": "a", "prompt": ' + b"9" * 5000 + b"}", "bad_json", "not usable JSON"),
    ([1], "bad_json", "a JSON list; a request is an object"),
    (b"null", "bad_json", "a JSON null"),
    ({"prompt": "Hi"}, "missing_field", '"custom_id" is missing'),
    ({"custom_id": 5, "prompt": "Hi"}, "wrong_type", '"custom_id" must be a string'),
    ({"custom_id": "", "prompt": "Hi"}, "wrong_type", "not empty"),
    ({"custom_id": "a"}, "missing_field", '"prompt" is missing'),
    ({"custom_id": "a", "promt": "Hi"}, "unknown_field", 'did you mean "prompt"?'),
    ({**OWN, "messages": []}, "bad_value", 'either "prompt" or "messages"'),
    ({"custom_id": "a", "prompt": 5}, "wrong_type", "a string or a list of token ids, not 5"),
    ({"custom_id": "a", "prompt": ["x"]}, "wrong_type", "a list of token ids"),
    ({"custom_id": "a", "prompt": [True]}, "wrong_type", "a list of token ids"),
    ({"custom_id": "a", "prompt": ""}, "bad_value", "empty"),
    ({"custom_id": "a", "prompt": []}, "bad_value", "empty"),
    ({"custom_id": "a", "prompt": "\ud800"}, "bad_value", "half a character"),
    ({"custom_id": "a", "messages": []}, "wrong_type", "at least one"),
    ({"custom_id": "a", "messages": ["Hi"]}, "wrong_type", "messages[0] must be an object"),
    ({"custom_id": "a", "messages": [{"content": "Hi"}]}, "missing_field", '"role"'),
    ({"custom_id": "a", "messages": [{"role": "user"}]}, "missing_field", '"content"'),
    ({"custom_id": "a", "messages": [{"role": 1, "content": "Hi"}]}, "wrong_type", '"role"'),
    ({**OWN, "temprature": 1}, "bad_parameter", "did you mean 'temperature'?"),
    ({**OWN, "temperature": "hot"}, "bad_parameter", "temperature is 'hot': it must be a number"),
    ({**OWN, "max_tokens": 0}, "bad_parameter", "max_tokens is 0: it must be a whole number"),
    ({**OWN, "prompt_logprobs": -1}, "bad_parameter", "prompt_logprobs is -1"),
    (chat(messages=None), "missing_field", '"messages" is missing'),
    (chat(messages=None, prompt="Hi"), "missing_field", "goes to /v1/completions"),
    (chat(stream=True), "unsupported", '"stream" is not supported'),
    (chat(tools=[{"type": "function"}]), "unsupported", '"tools" is not supported'),
    (chat(top_logprobs=2), "bad_parameter", "top_logprobs"),
    (completion(prompt=None), "missing_field", '"prompt" is missing'),
    (completion(prompt=["a", "b"]), "unsupported", "a list of 2 prompts"),
    (completion(echo=True), "unsupported", '"echo" is not supported'),
    ({**chat(), "url": "/v1/embeddings"}, "bad_value", "must be one of /v1/chat/completions"),
    ({**chat(), "url": None}, "missing_field", '"url" is missing'),
    ({**chat(), "method": "GET"}, "bad_value", 'must be "POST"'),
    ({**chat(), "body": None}, "missing_field", '"body" is missing'),
    ({**chat(), "body": "x"}, "wrong_type", '"body" must be an object, not a string'),
    ({**chat(), "max_tokens": 5}, "unknown_field", "belong into its body"),
    (
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "unsupported",
        'messages[0].content[0] is of type "image_url"',
    ),
    (
        chat(messages=[{"role": "user", "content": [{"type": "text"}]}]),
        "wrong_type",
        "messages[0].content[0] must be",
    ),
]


@pytest.mark.parametrize(("line", "code", "told"), BAD_LINES)
def test_a_bad_line_says_what_was_wrong_and_what_would_be_right(
    line: Any, code: str, told: str
) -> None:
    bad = parse(line)

    assert isinstance(bad, BadLine)
    assert bad.code == code
    assert told in bad.message


def test_a_line_that_was_too_long_to_read_is_bad() -> None:
    bad = LineParser(model="demo").parse(InputLine(4, None))

    assert (bad.line, bad.code) == (4, "bad_json")
    assert "longer than 64 MiB" in bad.message


def test_a_bad_line_keeps_what_is_known_of_its_identity() -> None:
    assert parse(chat(stream=True)).format == "chat"
    assert parse(chat(stream=True)).custom_id == "a"
    assert (parse(b"{").format, parse(b"{").custom_id) == (None, None)
