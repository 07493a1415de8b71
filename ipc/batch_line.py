"""Turns a line of a batch's input into a request, or says why it cannot be one."""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.sampling_params import SamplingParams
from engine.sampling_ranges import CHECKS
from engine.sampling_request import read_parameters

from . import openai_body
from .bad_request_error import BadRequestError
from .batch_request import BadLine, BatchRequest, LineFormat, Prompt, digest_of
from .conversation import check_messages, check_text
from .input_lines import MAX_LINE_BYTES, InputLine

ENVELOPE = ("custom_id", "method", "url", "body")
OWN = ("custom_id", "model", "prompt", "messages")


class LineParser:
    """Reads the lines of one job, in order. It remembers every custom_id, to refuse a second one.

    ``defaults`` are SamplingParams' arguments for lines that do not set them. A line without a seed
    gets one made from ``seed`` and its custom_id, so that a job that is run again samples the same
    answers.
    """

    def __init__(
        self,
        *,
        model: str,
        defaults: Mapping[str, Any] | None = None,
        seed: int = 0,
        any_model: bool = False,
    ):
        self._model = model
        self._defaults = dict(defaults or {})
        self._seed = seed
        self._any_model = any_model
        self._lines: dict[str, int] = {}  # where each custom_id was first seen

    def parse(self, line: InputLine) -> BatchRequest | BadLine:
        """Return the request on ``line``, or what is wrong with it."""
        custom_id: str | None = None
        line_format: LineFormat | None = None
        try:
            record = _decode(line)
            line_format = _format_of(record)
            custom_id = _custom_id(record)
            first = self._lines.setdefault(custom_id, line.number)
            if first != line.number:
                message = f'the custom_id "{custom_id}" is that of line {first} already'
                raise BadRequestError("duplicate_custom_id", f"{message}; give each line its own")
            return self._request(line.number, custom_id, line_format, record)
        except BadRequestError as error:
            digest = digest_of(line.content or b"")
            return BadLine(line.number, error.code, str(error), digest, custom_id, line_format)

    def _request(
        self, number: int, custom_id: str, line_format: LineFormat, record: dict[str, Any]
    ) -> BatchRequest:
        if line_format == "octavo":
            self._check_model(record)
            prompt, parameters = _read_own(record)
        else:
            body = _body(record)
            self._check_model(body)
            prompt, parameters = openai_body.read_body(line_format, body)
        try:
            parameters = {**self._defaults, **read_parameters(parameters)}
            parameters.setdefault("seed", self._seed_for(custom_id))
            params = SamplingParams(**parameters)
        except RequestError as error:
            raise BadRequestError("bad_parameter", str(error)) from None
        return BatchRequest(number, custom_id, line_format, prompt, params)

    def _check_model(self, record: Mapping[str, Any]) -> None:
        model = record.get("model")
        if model is not None and model != self._model and not self._any_model:
            shown = json.dumps(model, ensure_ascii=False)
            raise BadRequestError(
                "bad_value",
                f'"model" is {shown}, but this job runs "{self._model}": name that, leave it out,'
                " or run with --any-model",
            )

    def _seed_for(self, custom_id: str) -> int:
        text = f"{self._seed} {custom_id}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def _decode(line: InputLine) -> dict[str, Any]:
    if line.content is None:
        message = f"the line is longer than {MAX_LINE_BYTES >> 20} MiB; one request is one line"
        raise BadRequestError("bad_json", message)
    try:
        record = json.loads(line.content.decode("utf-8"))
    except UnicodeDecodeError as error:
        message = f"the line is not UTF-8: {error.reason} at byte {error.start + 1}"
        raise BadRequestError("bad_json", message) from None
    except json.JSONDecodeError as error:
        message = f"the line is not JSON: {error.msg} at column {error.colno}"
        raise BadRequestError("bad_json", message) from None
    except (RecursionError, ValueError) as error:  # nested too deep; a number of too many digits
        raise BadRequestError("bad_json", f"the line is not usable JSON: {error}") from None
    if not isinstance(record, dict):
        message = f"the line is a JSON {_json_type(record)}; a request is an object"
        raise BadRequestError("bad_json", message)
    return record


def _format_of(record: Mapping[str, Any]) -> LineFormat:
    """Return the line's format, by its url; a line with a body or a url is OpenAI's."""
    if "body" not in record and "url" not in record:
        return "octavo"
    url = record.get("url")
    if url is None:
        raise _missing("url", f"one of {', '.join(openai_body.URLS)}")
    line_format = openai_body.URLS.get(url) if isinstance(url, str) else None
    if line_format is None:
        shown = json.dumps(url, ensure_ascii=False)
        message = f'"url" must be one of {", ".join(openai_body.URLS)}, not {shown}'
        raise BadRequestError("bad_value", message)
    return line_format


def _custom_id(record: Mapping[str, Any]) -> str:
    custom_id = record.get("custom_id")
    if custom_id is None:
        raise _missing("custom_id", "a string that no other line has")
    if not isinstance(custom_id, str) or not custom_id:
        shown = json.dumps(custom_id, ensure_ascii=False)
        message = f'"custom_id" must be a string that is not empty, not {shown}'
        raise BadRequestError("wrong_type", message)
    return custom_id


def _body(record: Mapping[str, Any]) -> dict[str, Any]:
    for name in record:
        if name not in ENVELOPE:
            raise BadRequestError(
                "unknown_field",
                f'"{name}" is no field of a line in OpenAI\'s format ({", ".join(ENVELOPE)});'
                " sampling parameters belong into its body",
            )
    method = record.get("method")
    if method not in (None, "POST"):
        shown = json.dumps(method, ensure_ascii=False)
        raise BadRequestError("bad_value", f'"method" must be "POST", not {shown}')
    body = record.get("body")
    if body is None:
        raise _missing("body", "an object with the request")
    if not isinstance(body, dict):
        raise BadRequestError("wrong_type", f'"body" must be an object, not a {_json_type(body)}')
    return body


def _read_own(record: Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
    prompt, messages = record.get("prompt"), record.get("messages")
    if prompt is not None and messages is not None:
        message = 'a line has either "prompt" or "messages", not both'
        raise BadRequestError("bad_value", message)
    parameters = {name: value for name, value in record.items() if name not in OWN}
    for name in parameters:
        meant = difflib.get_close_matches(name, OWN, n=1, cutoff=0.7)
        if meant and name not in CHECKS:
            message = f'there is no field "{name}": did you mean "{meant[0]}"?'
            raise BadRequestError("unknown_field", message)
    if prompt is None and messages is None:
        raise _missing("prompt", 'a text or a list of token ids, or "messages"')
    return (check_messages(messages) if prompt is None else check_text(prompt)), parameters


def _missing(name: str, what: str) -> BadRequestError:
    return BadRequestError("missing_field", f'"{name}" is missing: {what}')


def _json_type(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null", dict: "object"}
    return names.get(type(value), "number")
