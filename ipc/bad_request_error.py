"""The one way a front refuses a request: a code for programs and a sentence for people."""

from typing import Literal

FaultCode = Literal[
    "bad_json",  # the line is not a JSON object in UTF-8, or too long
    "missing_field",
    "unknown_field",
    "wrong_type",
    "bad_value",
    "bad_parameter",  # a sampling parameter: unknown, of the wrong type, or out of range
    "unsupported",  # a field or value that is understood and cannot be served
    "duplicate_custom_id",
    "refused",  # by the engine: a prompt that can never fit, a token id the model has not
    "failed",  # in the engine, while it ran
]


class BadRequestError(ValueError):
    """A request that cannot run; the message says what was wrong and what would be right."""

    def __init__(self, code: FaultCode, message: str):
        super().__init__(message)
        self.code = code
