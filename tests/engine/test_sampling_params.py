"""Parameters are refused by name, value and range, and read as clients write them."""

import dataclasses
import json
import subprocess
import sys

import pytest

from engine.errors import RequestError
from engine.sampling_params import ParameterError, SamplingParams

BAD = {
    "max_tokens": ([0, -1, 1.5, "5", True, None], "a whole number from 1 to"),
    "min_tokens": ([-1, 0.5, None], "a whole number from 0 to"),
    "temperature": ([-0.1, float("nan"), float("inf"), 101, "1"], "from 0 (greedy) to 100"),
    "top_p": ([0, -0.1, 1.1, float("nan")], "above 0, at most 1"),
    "top_k": ([-2, 1.5, "3"], "from 1 to 2147483647, or 0 or -1"),
    "min_p": ([-0.1, 1.1], "from 0 (off) to 1"),
    "repetition_penalty": ([0, -1, 101], "above 0, at most 100"),
    "presence_penalty": ([-2.1, 2.1, None], "from -2 to 2"),
    "frequency_penalty": ([-2.1, 2.1, "x"], "from -2 to 2"),
    "logit_bias": ([{-1: 1.0}, {1: 101}, {"a": 1}, [1, 2], {1: None}], "numbers from -100 to 100"),
    "allowed_tokens": ([[], [-1], "12", [1.5], 7], "a list of token ids"),
    "banned_tokens": ([[-1], [None], 3], "a list of token ids"),
    "seed": ([-1, 2**64, 0.5], "from 0 to 2**64 - 1"),
    "stop": ([[""], "", [1], 5, None], "none of them empty"),
    "stop_token_ids": ([[-5], ["a"], 5], "a list of token ids"),
    "include_stop": ([1, "true", None], "true or false"),
    "ignore_eos": ([0, "no"], "true or false"),
    "n": ([0, 1025, 1.5], "from 1 to 1024"),
    "logprobs": ([-1, 129, True], "from 0 to 128"),
    "prompt_logprobs": ([-1, 129], "from 0 to 128"),
    "logprobs_mode": (["both", None, []], "'raw' or 'processed'"),
    "priority": ([2**31, 0.5, "high"], "a whole number"),
    "deadline": ([0, -1, float("inf")], "a number of seconds above 0"),
    "salt": ([5, None], "a string"),
    "json_schema": (["", 5], "a JSON schema"),
    "regex": (["", 5], "a regular expression"),
    "grammar": (["", 5], "a Lark grammar"),
}


def test_every_parameter_has_bad_values_to_try() -> None:
    assert set(BAD) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_with_its_name_the_value_and_the_range(name: str) -> None:
    values, allowed = BAD[name]
    for value in values:
        with pytest.raises(ParameterError) as caught:
            SamplingParams(**{name: value})
        assert isinstance(caught.value, RequestError)
        message = str(caught.value)
        assert message.startswith(f"{name} is {value!r}: it must be ")
        assert allowed in message


GOOD = {
    "max_tokens": [1, 5.0],
    "temperature": [None, 0, 0.7, 100],
    "top_p": [None, 1e-9, 1],
    "top_k": [None, 0, 1],
    "min_p": [None, 0, 1],
    "repetition_penalty": [None, 0.5, 100],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "logit_bias": [None, {0: -100, 5: 100}],
    "seed": [None, 0, 2**64 - 1],
    "n": [1, 1024],
    "logprobs": [None, 0, 128],
    "deadline": [None, 0.5],
    "json_schema": [None, "{}"],
}


@pytest.mark.parametrize("name", GOOD)
def test_the_ends_of_a_range_are_inside_it(name: str) -> None:
    for value in GOOD[name]:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_lists_become_tuples_and_a_single_stop_a_tuple_of_one() -> None:
    params = SamplingParams(
        stop="\n", stop_token_ids=[3], allowed_tokens=[1, 2], banned_tokens=[2], top_k=-1
    )
    assert (params.stop, params.stop_token_ids) == (("\n",), (3,))
    assert (params.allowed_tokens, params.banned_tokens) == ((1, 2), (2,))
    assert params.top_k == 0


def test_parameters_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ParameterError, match="min_tokens is 9: it must be at most max_tokens"):
        SamplingParams(max_tokens=8, min_tokens=9)
    with pytest.raises(RequestError, match="regex and grammar are both set"):
        SamplingParams(regex="a", grammar="start: 'a'")
    with pytest.raises(RequestError, match="bans every one of allowed_tokens"):
        SamplingParams(allowed_tokens=(1, 2), banned_tokens=(2, 1, 0))


def test_token_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    for name, value in {
        "logit_bias": {10: 1.0},
        "allowed_tokens": (1, 10),
        "banned_tokens": (10,),
        "stop_token_ids": (10,),
    }.items():
        params = SamplingParams(**{name: value})
        params.check_vocabulary(11)
        with pytest.raises(ParameterError, match=f"{name} is 10: .* from 0 to 9"):
            params.check_vocabulary(10)
    with pytest.raises(RequestError, match="bans the whole vocabulary"):
        SamplingParams(banned_tokens=(0, 1, 2)).check_vocabulary(3)


def test_an_unknown_name_is_refused_with_the_nearest_valid_one() -> None:
    for wrong, right in {"temprature": "temperature", "topp": "top_p", "stops": "stop"}.items():
        with pytest.raises(RequestError, match=f"no parameter '{wrong}': did you mean '{right}'"):
            SamplingParams.from_mapping({wrong: 1})


def test_a_mapping_gives_what_the_keywords_give_and_null_is_the_default() -> None:
    mapping = json.loads(
        '{"temperature": 0.5, "stop": ["a", "b"], "logit_bias": {"5": -1}, "seed": null,'
        ' "json_schema": {"type": "object"}, "max_tokens": 7}'
    )
    assert SamplingParams.from_mapping(mapping) == SamplingParams(
        temperature=0.5,
        stop=("a", "b"),
        logit_bias={5: -1.0},
        json_schema='{"type": "object"}',
        max_tokens=7,
    )


def test_openai_spellings_are_understood() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    params = SamplingParams.from_mapping(
        {
            "max_completion_tokens": 9,
            "stop": "END",
            "n": 2,
            "logprobs": True,
            "top_logprobs": 3,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": schema},
            },
        }
    )
    assert params == SamplingParams(
        max_tokens=9, stop="END", n=2, logprobs=3, json_schema=json.dumps(schema)
    )
    assert SamplingParams.from_mapping({"logprobs": True}).logprobs == 0
    assert SamplingParams.from_mapping({"logprobs": False}).logprobs is None
    assert SamplingParams.from_mapping({"logprobs": 2}).logprobs == 2
    any_object = SamplingParams.from_mapping({"response_format": {"type": "json_object"}})
    assert any_object.json_schema == '{"type": "object"}'
    assert SamplingParams.from_mapping({"response_format": {"type": "text"}}).json_schema is None


def test_openai_spellings_that_cannot_be_read_are_refused() -> None:
    for mapping, message in (
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens is given twice"),
        ({"top_logprobs": 3}, "top_logprobs is 3: it must be given beside logprobs: true"),
        ({"logprobs": True, "top_logprobs": 500}, "top_logprobs is 500: .* from 0 to 128"),
        ({"response_format": {"type": "xml"}}, "response_format is {'type': 'xml'}: it must be"),
        ({"response_format": {"type": "json_schema"}}, "response_format is"),
        ({"response_format": {"type": "json_object"}, "json_schema": "{}"}, "given twice"),
    ):
        with pytest.raises(RequestError, match=message):
            SamplingParams.from_mapping(mapping)
    with pytest.raises(RequestError, match="they must be a mapping"):
        SamplingParams.from_mapping([("n", 1)])


def test_what_a_request_leaves_open_comes_from_the_generation_config_then_the_default() -> None:
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [1]}
    resolved = SamplingParams(top_k=5).resolve(config)
    assert (resolved.temperature, resolved.top_k, resolved.top_p) == (0.6, 5, 1.0)
    assert (resolved.min_p, resolved.repetition_penalty) == (0.0, 1.0)
    assert SamplingParams().resolve().temperature == 0.0
    assert SamplingParams().resolve({"do_sample": True}).temperature == 1.0
    assert SamplingParams().resolve({"do_sample": False, "temperature": 0.6}).temperature == 0.0
    assert SamplingParams(temperature=0.3).resolve({"do_sample": False}).temperature == 0.3


def test_a_bad_generation_config_is_named_as_the_source() -> None:
    with pytest.raises(ParameterError, match=r"top_p is 7 \(from the model's generation config\)"):
        SamplingParams().resolve({"top_p": 7})
    assert SamplingParams(top_p=0.5).resolve({"top_p": 7}).top_p == 0.5


def test_validation_needs_no_arrays() -> None:
    check = (
        "import sys, types; package = types.ModuleType('engine'); package.__path__ = ['engine'];"
        "sys.modules['engine'] = package; import engine.sampling_params;"
        "sys.exit(any(name.split('.')[0] in ('mlx', 'numpy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
